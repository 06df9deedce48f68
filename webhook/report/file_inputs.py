"""Reads the objects of a report from files, with little memory: workloads stay JSON text until they are assessed."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec
import orjson

from webhook.offline.manifest_files import inputs
from webhook.offline.manifests import Document, Manifest, ManifestError, manifests, path_steps, read
from webhook.report.inventory import CONTROLLED, Found

_DRA: Final = "resource.k8s.io"
_FACTS: Final = frozenset(
    {
        *(("", kind) for kind in ("Namespace", "ResourceQuota", "LimitRange")),
        *((_DRA, kind) for kind in ("DeviceClass", "ResourceClaimTemplate", "ResourceClaim")),
    }
)
"""Objects on which the decisions about others depend, and claims, which policies may judge."""


@dataclasses.dataclass(frozen=True, slots=True)
class FileInputs:
    """The objects of all files.

    Attributes:
        found: workloads and all other objects but `facts`; those that others often own come last.
        facts: objects on which decisions depend.
        complete: whether every file could be read.
        files: number of files.
        line_of: file, line of an object and field path -> line of the file; exact if documents were kept.
    """

    found: tuple[Found, ...]
    facts: tuple[Manifest, ...]
    complete: bool
    files: int
    line_of: Callable[[str, int, str], int]


class _Item(msgspec.Struct, frozen=True):
    kind: str = ""
    apiVersion: str = ""  # noqa: N815 - the wire's spelling
    items: list[msgspec.Raw] | None = None


_decode_item: Final = msgspec.json.Decoder(_Item).decode


class _Reader:
    def __init__(self, *, lines: bool) -> None:
        self._lines = lines
        self.found: list[Found] = []
        self.facts: list[Manifest] = []
        self.documents: dict[tuple[str, int], tuple[Document, Manifest]] = {}

    def read(self, name: str, content: bytes) -> None:
        """Read one file.

        Raises:
            ManifestError: it does not contain manifests.
        """
        # Positions in JSON need a parser that is forty times as slow.
        if not self._lines and content.lstrip()[:1] == b"{" and self._read_json(name, content):
            return
        _, documents = read(content)
        for document in documents:
            for manifest in manifests(document):
                line = document.line_of(manifest.path)
                if self._lines:
                    self.documents[name, line] = (document, manifest)
                self._take(name, line, manifest)

    def _take(self, name: str, line: int, manifest: Manifest) -> None:
        if (manifest.group, manifest.kind) in _FACTS:
            self.facts.append(manifest)
            return
        version = str(manifest.data.get("apiVersion") or "").rpartition("/")[2]
        # YAML has types that JSON lacks, such as dates.
        raw = orjson.dumps(manifest.data, default=str, option=orjson.OPT_NON_STR_KEYS)
        self.found.append(Found(manifest.group, version, manifest.kind, raw, name, line))

    def _read_json(self, name: str, content: bytes) -> bool:
        """Read one JSON object or List; False if the file must be read as YAML, or has several objects."""
        try:
            waiting = [(_decode_item(content), content, "", "")]
            while waiting:
                item, raw, version, kind = waiting.pop()
                kind, version = item.kind or kind, item.apiVersion or version
                if kind.endswith("List") and item.items is not None:
                    # Items of typed lists may omit apiVersion and kind; items of a plain List may not.
                    defaults = ("", "") if kind == "List" else (version, kind.removesuffix("List"))
                    waiting += [(_decode_item(each), bytes(each), *defaults) for each in reversed(item.items)]
                    continue
                self._take_json(name, raw, version, kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, orjson.JSONDecodeError):
            self.found = [each for each in self.found if each.source != name]
            return False
        return True

    def _take_json(self, name: str, raw: bytes, version: str, kind: str) -> None:
        group, _, short = version.rpartition("/")
        if (group, kind) not in _FACTS:
            self.found.append(Found(group, short, kind, raw, name, 1))
            return
        data: dict[str, Any] = {"apiVersion": version, "kind": kind, **orjson.loads(raw)}
        self.facts += manifests(Document(1, "", 1, data, None))


def read_files(
    filenames: Iterable[str], say: Callable[[str], None], progress: Callable[[int], None], *, lines: bool = False
) -> FileInputs:
    """Read all files, each one once.

    Args:
        filenames: files, directories, and `-` for standard input.
        say: receives an error with file, line and column for each file that cannot be read.
        progress: receives the number of objects so far, after each file.
        lines: whether lines of fields will be asked for; that keeps every document in memory.
    """
    reader = _Reader(lines=lines)
    complete, files = True, 0
    for name, content in inputs(filenames):
        try:
            reader.read(name, content())
        except ManifestError as error:
            say(f"{name}:{error.line}:{error.column}: {error.problem}.")
            complete = False
        except OSError as error:
            say(f"{name}: {error.strerror}.")
            complete = False
        else:
            files += 1
            progress(len(reader.found) + len(reader.facts))
    found = sorted(reader.found, key=lambda each: (each.group, each.kind) in CONTROLLED)
    documents = reader.documents

    def line_of(source: str, line: int, path: str) -> int:
        known = documents.get((source, line))
        return line if known is None else known[0].line_of((*known[1].path, *path_steps(path)))

    return FileInputs(tuple(found), tuple(reader.facts), complete, files, line_of)
