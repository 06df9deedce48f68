"""Texts through `neuron-dra convert`, without its command line."""

import dataclasses
import io
from collections.abc import Sequence
from typing import Any

from commands.objects.documents import Document, Documents, TextBudget
from commands.objects.file_policies import FilePolicies
from commands.objects.manifest_files import ManifestSource
from commands.objects.manifests import DEFAULT_NAMESPACE, manifests
from commands.rewrite.convert_files import Change, Converter, Notice
from commands.rewrite.convert_output import as_diff, as_json, as_yaml
from conversion.asks.conversion_context import ConversionOptions
from tests.support.trainium import trainium

PARSED_ONCE = 1 << 20


@dataclasses.dataclass(frozen=True)
class Conversion:
    """The changes of all files, their messages, and the numbers of objects that were refused or left as they were."""

    changes: Sequence[tuple[ManifestSource, Change]]
    notices: Sequence[Notice]
    refused: int
    left: int


@dataclasses.dataclass(frozen=True)
class Converted:
    """What came of some files."""

    conversion: Conversion
    yaml: str
    json: str
    diff: str
    said: list[str]

    @property
    def notices(self) -> list[str]:
        """All notices, as they are printed."""
        return [str(notice) for notice in self.conversion.notices]

    @property
    def objects(self) -> list[dict[str, Any]]:
        """The objects that the YAML holds."""
        return [each.data for document in documents(self.yaml) for each in manifests(document) if not each.wrapped]

    def named(self, kind: str, name: str = "") -> dict[str, Any]:
        """The one object of a kind and name."""
        (found,) = [
            each
            for each in self.objects
            if each.get("kind") == kind and name in ("", each.get("metadata", {}).get("name"))
        ]
        return found


def source(name: str, content: str | bytes, kept: int = PARSED_ONCE) -> ManifestSource:
    """A file with a content, of which `kept` characters are parsed only once."""
    raw = content.encode() if isinstance(content, str) else content
    return ManifestSource(name, Documents(lambda: io.BytesIO(raw), TextBudget(kept)))


def documents(content: str | bytes) -> list[Document]:
    """The documents of a file, parsed."""
    found = list(source("f", content).documents)
    for document in found:
        document.data  # noqa: B018 - raises
    return found


def convert_sources(
    sources: Sequence[ManifestSource],
    options: ConversionOptions,
    policies: FilePolicies | None = None,
    namespace: str = DEFAULT_NAMESPACE,
    **how: bool,
) -> Conversion:
    """Convert files as the command does."""
    converter = Converter(options, policies, namespace, **how)
    for each in sources:
        for document in each.documents:
            for manifest in manifests(document, namespace):
                converter.take(manifest)
    changes = [(each, converter.convert(each.name, document)) for each in sources for document in each.documents]
    return Conversion(changes, converter.notices, converter.refused, converter.left)


def convert_texts(*texts: str, namespace: str = "default", **options: Any) -> Converted:
    """Convert files named f0.yaml, f1.yaml, …"""
    sources = [source(f"f{index}.yaml", text) for index, text in enumerate(texts)]
    conversion = convert_sources(sources, trainium(**options), namespace=namespace)
    data = convert_sources(sources, trainium(**options), namespace=namespace, texts=False)
    said: list[str] = []
    return Converted(
        conversion,
        "".join(as_yaml(conversion.changes, said.append)),
        "".join(as_json(data.changes)),
        "".join(as_diff(conversion.changes, str, lambda _: None)),
        said,
    )
