"""Reads the objects of a report, with little memory.

Workloads of files stay JSON text until they are assessed. A cluster is read page by page (one page is in memory);
its webhook has logged what it saw in shadow mode.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import BinaryIO, Final, TypeVar

import msgspec
import orjson

from cluster import resources
from cluster.from_files import MEANT_FOR_OTHERS
from cluster.kinds.replicas import SELECTOR
from commands.cluster.reader import TIMEOUT, ClusterReader, Kind, Seen, ServedKind, Unseen, items, unseen, whole
from commands.cluster.snapshot import ClusterSnapshot, read_snapshot, read_store, stored
from commands.objects.decider import is_readable
from commands.objects.documents import Document
from commands.objects.long_lists import LONG, recognise
from commands.objects.manifest_files import STDIN, GivenManifests, ReadProblem, inputs, read_sources
from commands.objects.manifests import DEFAULT_NAMESPACE, FileStore, Manifest, manifests, manifests_of, path_steps
from commands.report.build import ReportBuilder
from commands.report.inventory import CONTROLLED, Found
from commands.report.model import Shadowed, most_pods_first
from commands.status import kueue
from conversion.findings.pod_findings import unread
from conversion.objects import pods
from conversion.objects.kinds import holds_claims
from neuron import names
from neuron.api.fields import mapping, mappings
from neuron.codes import CODES
from neuron.findings import known_codes
from neuron.names import EVENT_CONTROLLER, EVENT_REASON
from runtime.answers import identity
from runtime.api_server import ApiAnswerError, ApiServerError, Resource, loaded_object
from runtime.text import named

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


# --- a cluster, page by page: at most one page is in memory -----------------------------------------------------------


_CORE: Final = {
    ("", "Pod"): resources.PODS,
    ("", "PodTemplate"): resources.POD_TEMPLATES,
    ("", "ReplicationController"): resources.REPLICATION_CONTROLLERS,
}
_JUDGED: Final = {
    "DeviceClass": resources.DEVICE_CLASSES,
    "ResourceClaimTemplate": resources.RESOURCE_CLAIM_TEMPLATES,
    "ResourceClaim": resources.RESOURCE_CLAIMS,
}
"""Objects that are no workloads, and that policies may judge."""


@dataclasses.dataclass(frozen=True, slots=True)
class Surroundings:
    """What a cluster has around its workloads.

    Attributes:
        seen: Nodes, slices, claims and classes.
        store: what the webhook would know; objects of files can be put over it.
        unknown: why VerticalPodAutoscalers are not known, as a sentence; empty if they are.
        queues: how Kueue is set up.
    """

    seen: ClusterSnapshot
    store: FileStore
    unknown: str
    queues: Seen[kueue.KueueSetup]

    @property
    def unseen(self) -> tuple[Unseen, ...]:
        """Nodes and slices that cannot be read: without them nothing can be said of devices."""
        return tuple(each for each in (self.seen.nodes, self.seen.slices) if isinstance(each, Unseen))


async def read_surroundings(reader: ClusterReader, address: str) -> Surroundings:
    """Read devices, claims, classes and what else the webhook knows of a cluster.

    Raises:
        ApiServerError: the cluster does not answer.
        ClusterUnavailableError: a kind without which nothing can be said cannot be listed.
    """
    seen = await read_snapshot(reader, address, with_pods=False)
    store = await read_store(reader, address, stored(seen))
    unknown = f"{store.unseen}." if store.unseen else ""
    return Surroundings(seen, FileStore(below=store), unknown, await kueue.read(reader))


@dataclasses.dataclass(slots=True)
class ClusterInputs:
    """Reads a cluster into a `ReportBuilder`.

    Attributes:
        namespace: only this one; empty: all.
        complete: whether everything could be read.
    """

    reader: ClusterReader
    namespace: str
    complete: bool = True

    async def read(self, builder: ReportBuilder) -> None:
        """Read all workloads, and what policies judge. What cannot be read becomes a note of the report."""
        await self.read_workloads(builder.take, builder.problems.append)
        if builder.audits:
            for name, resource in _JUDGED.items():
                await self._judge(name, resource, builder)

    async def read_workloads(self, take: Callable[[Found], None], problem: Callable[[ReadProblem], None]) -> None:
        """Read all workloads, pods last. `problem` is called with what cannot be read."""
        for kind, served in _ordered(await self._kinds(problem)):
            await self._read(kind, served, take, problem)

    async def _kinds(self, problem: Callable[[ReadProblem], None]) -> Mapping[Kind, ServedKind]:
        known = {kind: ServedKind(resource, True, frozenset()) for kind, resource in _CORE.items()}
        try:
            return {**await self.reader.served(), **known}
        except ApiServerError as error:
            self.complete = False
            problem(ReadProblem("/apis", 0, 0, f"only pods are read: {error}"))
            return known

    async def _read(
        self,
        kind: Kind,
        served: ServedKind,
        take: Callable[[Found], None],
        problem: Callable[[ReadProblem], None],
    ) -> None:
        if self.namespace and not served.namespaced:
            return  # Its objects are in no namespace.

        def found(raw: bytes) -> None:
            take(Found(kind[0], served.resource.version, kind[1], raw))

        def tell(text: str) -> None:
            problem(ReadProblem(served.resource.plural, 0, 0, text.rstrip(".")))

        await self._list(served.resource, found, tell)

    async def _judge(self, kind: str, resource: Resource, builder: ReportBuilder) -> None:
        if self.namespace and kind == "DeviceClass":
            return  # It is in no namespace.

        def take(raw: bytes) -> None:
            try:
                data = {"apiVersion": f"{resource.group}/{resource.version}", "kind": kind, **loaded_object(raw)}
            except ApiAnswerError:
                name = identity(raw)
                builder.unaudited.append(f"{kind} {name.namespace}/{name.name} cannot be read.")
                return
            if _is_generated(data):
                return
            for manifest in manifests_of(data):
                builder.judge(manifest)

        await self._list(resource, take, builder.unaudited.append)

    async def _list(self, resource: Resource, take: Callable[[bytes], None], tell: Callable[[str], None]) -> None:
        """Each object of a list once, also if the list begins again."""
        taken: set[str] = set()

        def once(raw: bytes) -> None:
            uid = identity(raw).uid
            if not uid or uid not in taken:
                taken.add(uid)
                take(raw)

        try:
            await self.reader.read(resource, lambda raw: once(bytes(raw)), lambda: None, self.namespace)
        except ApiServerError as error:
            tell(str(unseen(error, resource, "list", self.namespace)))
            self.complete = False


def _is_generated(claim: Mapping[str, object]) -> bool:
    """Whether Kubernetes made a claim from a template, which is judged itself."""
    owners = mappings(mapping(claim.get("metadata")).get("ownerReferences"))
    return any(each.get("kind") == "Pod" for each in owners)


def _ordered(kinds: Mapping[Kind, ServedKind]) -> Iterable[tuple[Kind, ServedKind]]:
    """The known kinds; those that others often own last, and pods after all others."""
    known = [(kind, served) for kind, served in kinds.items() if holds_claims(*kind)]
    return sorted(known, key=lambda each: (each[0] == ("", "Pod"), each[0] in CONTROLLED, each[0]))


# --- the webhook's own records: the logs of its replicas, and its Events ----------------------------------------------


_SHADOWED: Final = "shadowed"


class _Line(msgspec.Struct, frozen=True):
    """The fields of a line of the decision log that are read."""

    event: str = ""
    decision: str = ""
    reason: str = ""
    kind: str = ""
    dry_run: bool = False
    findings: tuple[str, ...] = ()
    namespace: str = ""
    name: str = ""
    generateName: str = ""  # noqa: N815 - the log's spelling


_decode: Final = msgspec.json.Decoder(_Line).decode


def of_log(lines: Iterable[bytes]) -> tuple[Shadowed, ...]:
    """Pods that the webhook saw in shadow mode, by name and outcome. Other lines are ignored."""
    found: Counter[tuple[str, str, str, tuple[str, ...]]] = Counter()
    for line in lines:
        if b'"shadowed"' not in line:
            continue
        try:
            read = _decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if (read.event, read.decision, read.dry_run) == ("decision", _SHADOWED, False):
            codes = tuple(sorted((set(read.findings) & CODES.keys()) - {"NEU208"}))
            found[read.namespace, read.generateName or read.name, read.reason, codes] += 1
    return most_pods_first(Shadowed(*key, count) for key, count in found.items())


def of_events(items: Iterable[Mapping[str, object]]) -> tuple[Shadowed, ...]:
    """Refusals by the webhook's Events (`events.k8s.io/v1`)."""
    found = []
    for item in items:
        regarding, series = mapping(item.get("regarding")), mapping(item.get("series"))
        note = str(item.get("note") or "")
        codes = tuple(known_codes(note))
        namespace = str(mapping(item.get("metadata")).get("namespace") or "")
        about = f"{named(regarding.get('kind') or '')} {named(regarding.get('name') or '')}"
        source = f"Event {named(mapping(item.get('metadata')).get('name') or '')}"
        count = series.get("count")
        found.append(Shadowed(namespace, about, "denied", codes, count if isinstance(count, int) else 1, source, note))
    return most_pods_first(found)


T = TypeVar("T")

_CONTAINER: Final = "webhook"
_LINES: Final = 20_000
"""Log lines that are read of each replica: about 6 MiB."""
_MOST_REPLICAS: Final = 16


async def read_records(
    reader: ClusterReader, webhook_namespace: str, namespace: str, notes: list[str]
) -> tuple[Shadowed, ...]:
    """What the webhook reported about pods.

    Args:
        webhook_namespace: where the webhook runs.
        namespace: only pods of this one; empty: all.
        notes: receives what cannot be read.
    """
    ours = f"reason={EVENT_REASON},reportingController={EVENT_CONTROLLER}"
    found = [
        *await _logged(reader, webhook_namespace, notes),
        *of_events(_known(await reader.list(resources.EVENTS, namespace, keep=whole, fieldSelector=ours), notes)),
    ]
    return tuple(each for each in found if not namespace or each.namespace == namespace)


async def _logged(reader: ClusterReader, webhook_namespace: str, notes: list[str]) -> tuple[Shadowed, ...]:
    pods = await reader.list(
        resources.PODS, webhook_namespace, keep=lambda item: str(item["metadata"]["name"]), labelSelector=SELECTOR
    )
    lines: list[bytes] = []
    for name in _known(pods, notes)[:_MOST_REPLICAS]:
        path = f"{resources.PODS.path(webhook_namespace, name)}/log"
        query = {"container": _CONTAINER, "tailLines": str(_LINES)}
        try:
            log = await reader.server.request("GET", path, timeout=TIMEOUT, query=query, accept="*/*")
        except ApiServerError as error:
            notes.append(f"shadow mode: {unseen(error, resources.POD_LOGS, 'get', webhook_namespace)}")
        else:
            lines += log.splitlines()
    return of_log(lines)


def _known(seen: Seen[T], notes: list[str]) -> tuple[T, ...]:
    if isinstance(seen, Unseen):
        notes.append(f"records of the webhook: {seen}")
    return items(seen)
