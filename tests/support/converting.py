"""Texts through `neuron-dra convert`, without its command line."""

import dataclasses
from pathlib import PurePath
from typing import Any

from tests.support.trainium import trainium
from webhook.offline.convert_files import Conversion, convert_sources
from webhook.offline.convert_output import as_diff, as_json, as_yaml
from webhook.offline.manifests import manifests, read
from webhook.offline.notices import Source


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
        return [manifest.data for document in read(self.yaml.encode())[1] for manifest in manifests(document)]

    def named(self, kind: str, name: str = "") -> dict[str, Any]:
        """The one object of a kind and name."""
        (found,) = [
            each
            for each in self.objects
            if each.get("kind") == kind and name in ("", each.get("metadata", {}).get("name"))
        ]
        return found


def convert_texts(*texts: str, **options: Any) -> Converted:
    """Convert files named f0.yaml, f1.yaml, …"""
    sources = [Source(f"f{index}.yaml", *read(text.encode())) for index, text in enumerate(texts)]
    conversion = convert_sources(sources, trainium(**options))
    said: list[str] = []
    return Converted(
        conversion,
        as_yaml(conversion, said.append),
        as_json(conversion),
        as_diff(conversion, PurePath("/"), lambda _: None),
        said,
    )
