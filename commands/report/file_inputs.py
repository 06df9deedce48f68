"""Reads the objects of a report from files, with little memory: workloads stay JSON text until they are assessed."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import BinaryIO, Final

import msgspec
import orjson

from cluster.from_files import MEANT_FOR_OTHERS
from commands.objects.decider import is_readable
from commands.objects.documents import Document
from commands.objects.long_lists import LONG, recognise
from commands.objects.manifest_files import STDIN, GivenManifests, ReadProblem, inputs, read_sources
from commands.objects.manifests import DEFAULT_NAMESPACE, Manifest, manifests, manifests_of, path_steps
from commands.report.inventory import CONTROLLED, Found
from conversion.findings.pod_findings import unread
from conversion.objects import pods
from neuron import names

_COMMAND: Final = "report"
_WRAPPER: Final = b'"AppWrapper"'
_NAMES_TEMPLATE: Final = (b'"resourceClaimTemplateName"', f'"{names.ANNOTATION_TEMPLATE}"'.encode())


@dataclasses.dataclass(frozen=True, slots=True)
class FileInputs:
    """The objects of all files.

    Attributes:
        found: workloads and all other objects but `facts`; those that others often own come last.
        facts: objects on which decisions depend.
        faults: files that cannot be read, and facts of a wrong form, which decisions ignore.
        line_of: file, line of an object and field path -> line of the file; exact if documents were kept.
    """

    found: tuple[Found, ...]
    facts: tuple[Manifest, ...]
    faults: tuple[ReadProblem, ...]
    line_of: Callable[[str, int, str], int]


class _Item(msgspec.Struct, frozen=True):
    kind: str = ""
    apiVersion: str = ""  # noqa: N815 - the wire's spelling
    items: list[msgspec.Raw] | None = None


_decode_item: Final = msgspec.json.Decoder(_Item).decode

Reduced = Callable[[str, bytes], bytes]
"""From the kind of an object and its JSON to what is kept of it."""


class _InputReader:
    def __init__(self, step: Callable[[], None], *, lines: bool, reduced: Reduced | None) -> None:
        self._lines = lines
        self._reduced = reduced
        self._step = step
        self._slow: list[str | GivenManifests] = []
        self.found: list[Found] = []
        self.facts: list[Manifest] = []
        self.faults: list[ReadProblem] = []
        self.documents: dict[tuple[str, int], tuple[Document, Manifest]] = {}

    def read(self, given: Iterable[str | GivenManifests]) -> None:
        """Read all files."""
        given = list(given)
        self._slow += [each for each in given if isinstance(each, GivenManifests)]
        for name, opened in inputs([each for each in given if isinstance(each, str)], _COMMAND):
            try:
                with opened() as content:
                    # Where all of its objects are kept, item by item takes more memory than JSON as it is.
                    if name != STDIN and self._reduced is None and len(content.read(LONG)) == LONG:
                        content.seek(0)
                        if recognise(content) is not None:
                            self._slow.append(name)  # It is read item by item.
                            continue
                    if name != STDIN:
                        content.seek(0)
                    self._sort(name, content)
            except OSError as error:
                self.faults.append(ReadProblem(name, 0, 0, str(error.strerror)))
        read = read_sources(self._slow, DEFAULT_NAMESPACE, step=self._step, command=_COMMAND)
        self.faults += read.faults
        for source in read.sources:
            for document in source.documents:
                for manifest in manifests(document):
                    self._take(source.name, document, manifest)

    def _sort(self, name: str, content: BinaryIO) -> None:
        """Read a JSON file at once; others are left to the reader of manifests."""
        first = next((line for line in content if line.strip()), b"")
        is_json = first.lstrip()[:1] == b"{"
        if name == STDIN or (is_json and not self._lines):
            if name == STDIN:
                whole = first + content.read()
            else:
                content.seek(0)
                whole = content.read()
            # Positions in JSON need a parser that is forty times as slow.
            if not (is_json and not self._lines and self._read_json(name, whole)):
                self._slow.append(GivenManifests(name, whole))
        else:
            self._slow.append(name)

    def _take(self, name: str, document: Document, manifest: Manifest) -> None:
        line = document.line_of(manifest.path)
        if self._lines:
            self.documents[name, line] = (document, manifest)
        if manifest.wraps:
            return  # The objects in it follow.
        if (manifest.group, manifest.kind) in MEANT_FOR_OTHERS:
            self._keep(name, line, manifest)
            return
        version = str(manifest.data.get("apiVersion") or "").rpartition("/")[2]
        # YAML has types that JSON lacks, such as dates.
        raw = orjson.dumps(_placed(manifest), default=str, option=orjson.OPT_NON_STR_KEYS)
        readable = is_readable(manifest)
        # The inventory ignores all others. A policy may have the template that an object names.
        if self._reduced is not None:
            raw = self._reduced(manifest.kind, raw)
        kept = self._reduced is not None or not readable or pods.may_concern_us(raw)
        if kept or any(word in raw for word in _NAMES_TEMPLATE):
            made = Found(manifest.group, version, manifest.kind, raw, name, line, manifest.form, readable)
            self.found.append(made.waiting())

    def _read_json(self, name: str, content: bytes) -> bool:
        """Read one JSON object or List; False if the file must be read as YAML, or has several objects."""
        if _WRAPPER in content:
            return False  # It holds other objects.
        try:
            waiting: list[tuple[bytes | msgspec.Raw, str, str]] = [(content, "", "")]
            while waiting:
                raw, version, kind = waiting.pop()
                item = _decode_item(raw)
                kind, version = item.kind or kind, item.apiVersion or version
                if kind.endswith("List") and item.items is not None:
                    # Items of typed lists may omit apiVersion and kind; items of a plain List may not.
                    defaults = ("", "") if kind == "List" else (version, kind.removesuffix("List"))
                    waiting += [(each, *defaults) for each in reversed(item.items)]
                    continue
                self._take_json(name, bytes(raw), version, kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, orjson.JSONDecodeError):
            self.found = [each for each in self.found if each.source != name]
            return False
        return True

    def _take_json(self, name: str, raw: bytes, version: str, kind: str) -> None:
        group, _, short = version.rpartition("/")
        if (group, kind) not in MEANT_FOR_OTHERS:
            raw = raw if self._reduced is None else self._reduced(kind, raw)
            self.found.append(Found(group, short, kind, raw, name, 1).waiting())
            return
        data: dict[str, object] = {"apiVersion": version, "kind": kind, **orjson.loads(raw)}
        for manifest in manifests_of(data):
            self._keep(name, 1, manifest)

    def _keep(self, name: str, line: int, manifest: Manifest) -> None:
        self.facts.append(manifest)
        for each in unread(manifest.group, manifest.kind, manifest.data):
            self.faults.append(ReadProblem(name, line, 1, f"{each.path}: {each.message}".rstrip(".")))


def _placed(manifest: Manifest) -> dict[str, object]:
    """The object with its namespace, which an AppWrapper around it may set."""
    metadata = manifest.data.get("metadata")
    if not isinstance(metadata, dict) or manifest.written_namespace in ("", metadata.get("namespace")):
        return manifest.data
    return {**manifest.data, "metadata": {**metadata, "namespace": manifest.written_namespace}}


def read_files(
    given: Iterable[str | GivenManifests],
    step: Callable[[], None],
    *,
    lines: bool = False,
    reduced: Reduced | None = None,
) -> FileInputs:
    """Read all files, each one once.

    Args:
        given: files, directories, `-` for standard input, and what another program printed.
        step: is called after each document.
        lines: whether lines of fields will be asked for; that keeps every document in memory.
        reduced: what is kept of objects; with it those are kept, too, that do not name Neuron resources, as Nodes.
    """
    reader = _InputReader(step, lines=lines, reduced=reduced)
    reader.read(given)
    found = sorted(reader.found, key=lambda each: (each.group, each.kind) in CONTROLLED)
    documents = reader.documents

    def line_of(source: str, line: int, path: str) -> int:
        known = documents.get((source, line))
        return line if known is None else known[0].line_of((*known[1].path, *path_steps(path)))

    return FileInputs(tuple(found), tuple(reader.facts), tuple(reader.faults), line_of)
