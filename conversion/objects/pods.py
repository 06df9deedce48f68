"""The view of a Pod: exactly the fields that conversion reads.

It is decoded from the review's bytes. Fields that are not declared here are skipped, so that a decision cannot depend
on them. `key()` contains everything that a decision depends on: replicas of one workload have equal keys and share one
decision.
"""

import functools
import json
import posixpath
import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypedDict

import msgspec
import orjson
from msgspec import Raw, Struct

from conversion.objects import nesting, queues
from conversion.objects.wire import ABSENT
from neuron import names
from neuron.api import environment
from neuron.api.nodes import Affinity

_EMPTY = (b"", b"null")
_MEMBER = re.compile(r"^(metadata\.(?:annotations|labels))\.(.+)$")
# The shortest legacy name. The others start with it.
_RESOURCE = names.RESOURCE_NEURON.encode()
_LABEL = names.LABEL_CONVERTED.encode()
_VARIABLE = b"NEURON_"
_HOST_DEVICE: Final = re.compile(r"/dev(?:/neuron[0-9]{0,4})?")
_Text = str | int | float | bool | None
"""A value that is not used: the API server admits strings only."""
MOST_CONTAINERS: Final = 512
"""Containers of a pod, init containers included."""
_LARGEST_PART: Final = 64 * 1024
_PER_CONTAINER: Final = 256
"""Bytes of the objects of a container's key."""
_AMOUNTS: Final = ("limits", "requests")
_REMOVED: Final = (*names.LEGACY_RESOURCES, names.RESOURCE_EFA)
_ORDINARY: Final = 1024
"""Bytes of `resources` that are read for the key of a decision."""
_MOST_OBJECTS: Final = 1024
"""JSON objects in one field of a pod's spec: claims, tolerations, terms and expressions of affinity."""


class Excess(NamedTuple):
    """A part of a pod that is larger than its limit.

    Attributes:
        path: field path of the part.
        text: the part, its size and the limit, for messages.
    """

    path: str
    text: str


def mentions(raw: bytes, word: bytes) -> bool:
    """Whether JSON may contain a word. True if an escape could spell the word differently."""
    return word in raw or has_escapes(raw)


def has_escapes(raw: bytes) -> bool:
    """Whether JSON may spell a word differently: a slash as `\\/`, and every character as `\\u....`."""
    # A search for one byte is much faster, and most pods have no backslash.
    return b"\\" in raw and (b"\\u" in raw or b"\\/" in raw)


def may_concern_us(raw: bytes) -> bool:
    """Cheap pre-filter on bytes: may this Pod request Neuron devices?"""
    return _RESOURCE in raw or _LABEL in raw or has_escapes(raw)


class _Resources(TypedDict, total=False):
    limits: dict[str, Any] | None
    requests: dict[str, object] | None
    claims: list["_ResourceClaim"] | None


class _ResourceClaim(TypedDict, total=False):
    name: str
    request: str | None


class _EnvVar(TypedDict, total=False):
    name: str
    value: str | None


class _HostPath(TypedDict, total=False):
    path: object


class _Volume(TypedDict, total=False):
    hostPath: _HostPath | None


class _EnvSource(TypedDict, total=False):
    prefix: str | None


class _PodResourceClaim(TypedDict, total=False):
    name: str
    resourceClaimTemplateName: str | None


_check_volumes: Final = msgspec.json.Decoder(list[_Volume]).decode
_check_env: Final = msgspec.json.Decoder(list[_EnvVar]).decode
_check_env_from: Final = msgspec.json.Decoder(list[_EnvSource]).decode
_check_resources: Final = msgspec.json.Decoder(_Resources).decode
_check_claims: Final = msgspec.json.Decoder(list[_PodResourceClaim]).decode
_check_node_selector: Final = msgspec.json.Decoder(dict[str, str]).decode
_check_affinity: Final = msgspec.json.Decoder(Affinity).decode
_check_tolerations: Final = msgspec.json.Decoder(list[dict[str, object]]).decode


def _has_amounts_only(resources: object) -> bool:
    return isinstance(resources, dict) and all(
        [field in _AMOUNTS and isinstance(value, dict) for field, value in resources.items()]
    )


def _is_list_of_objects(value: object) -> bool:
    return isinstance(value, list) and all([isinstance(each, dict) for each in value])


def _part(
    raw: Raw, check: Callable[[bytes], object], where: str, is_right: Callable[[object], bool] | None = None
) -> Any:
    """Decode a part and check its types; unknown fields are kept. None if it is absent or null.

    Args:
        check: decodes it with its types.
        where: its field path in the pod.
        is_right: whether the types of a decoded part are right, so that `check` need not decode it, too.

    Raises:
        msgspec.ValidationError: a type is wrong; the message has the field path in the pod.
        nesting.TooDeepError: it is nested too deeply.
    """
    text = bytes(raw)
    if text in _EMPTY:
        return None
    if is_right is not None and is_right(found := nesting.decode(text)):
        return found
    try:
        check(text)
    except msgspec.ValidationError as error:
        what, at, place = str(error).partition(" - at `$")
        raise msgspec.ValidationError(f"{what} - at `$.{where}{place if at else '`'}") from error
    return nesting.decode(text)


@functools.lru_cache(maxsize=256)
def _converted_amounts(raw: bytes) -> Hashable:
    """Everything that a decision depends on of a container's `resources`: pods that differ in CPU and memory are equal.

    These are the amounts that conversion removes, and the names of the others. `raw` itself, if there is more to read,
    or if an amount is no text.
    """
    try:
        resources = nesting.decode(raw)
    except UnreadableError:
        return raw
    if not _has_amounts_only(resources):
        return raw
    found: list[object] = [mentions(raw, _RESOURCE)]
    for field in _AMOUNTS:
        amounts: Mapping[str, object] = resources.get(field, {})
        removed = [(name, amounts[name]) for name in amounts if name in _REMOVED]
        if not all([isinstance(amount, str) for _, amount in removed]):
            return raw
        found.append((*amounts, None, *removed))
    return tuple(found)


class Container(Struct, frozen=True):
    """One entry of `containers` or `initContainers`."""

    name: str = ""
    resources: Raw = ABSENT
    env: Raw = ABSENT
    envFrom: Raw = ABSENT  # noqa: N815
    restartPolicy: str | None = None  # noqa: N815 - the API's spelling

    @property
    def may_ask(self) -> bool:
        """Cheap pre-filter on bytes: may `resources` name a legacy resource?"""
        return mentions(bytes(self.resources), _RESOURCE)

    @property
    def has_env(self) -> bool:
        """Whether `env` is a list, so that a patch can append to it."""
        return self.env is not ABSENT and bytes(self.env) not in _EMPTY

    @property
    def variables(self) -> list[str]:
        """Names of the environment variables, in order."""
        return [entry.get("name", "") for entry in self._decode_env()]

    def _decode_env(self) -> list[dict[str, Any]]:
        return _part(self.env, _check_env, "spec.containers[*].env") or []

    @property
    def may_set_variables(self) -> bool:
        """Cheap pre-filter on bytes: may `env` set a variable of the Neuron runtime?"""
        return self.env is not ABSENT and mentions(bytes(self.env), _VARIABLE)

    @property
    def core_variables(self) -> tuple[str, ...]:
        """Those of `names.CORE_VARIABLES` that the container sets."""
        if not self.may_set_variables:
            return ()
        return tuple(name for name in self.variables if name in names.CORE_VARIABLES)

    @property
    def device_variables(self) -> tuple[tuple[str, str], ...]:
        """Name and value of the variables that choose devices, cores or the logical NeuronCore themselves.

        The value is that of the logical NeuronCore only; empty if it is not written in the pod.
        """
        if not self.may_set_variables:
            return ()
        found = {}
        for each in self._decode_env():
            name, value = each.get("name"), each.get("value")
            if name in names.LNC_VARIABLES:
                found[name] = value[:8] if isinstance(value, str) else ""
            elif name in names.PINNING_VARIABLES:
                found[name] = ""
        return tuple(found.items())

    @property
    def logical_neuron_cores(self) -> dict[str, int | None]:
        """As `environment.logical_neuron_cores`."""
        if not self.may_set_variables:
            return {}
        return environment.logical_neuron_cores({"env": self._decode_env(), "envFrom": self._decode_env_from()})

    @property
    def may_take_lnc(self) -> bool:
        """Whether `envFrom` may set the logical NeuronCore. A variable of `env` precedes it."""
        if self.envFrom is ABSENT or self.logical_neuron_cores:
            return False
        return environment.may_take_lnc({"envFrom": self._decode_env_from()})

    def _decode_env_from(self) -> list[dict[str, Any]] | None:
        sources: list[dict[str, Any]] | None = _part(self.envFrom, _check_env_from, "spec.containers[*].envFrom")
        return sources

    def decode_resources(self, path: str = "") -> dict[str, Any] | None:
        """`resources` with all fields. `path`: field path of the container, for errors."""
        if self.resources is ABSENT:
            return None
        where = f"{path}.resources".lstrip(".")
        value: dict[str, object] | None = _part(self.resources, _check_resources, where, _has_amounts_only)
        return value

    def shape(self) -> Hashable:
        """Everything that a decision depends on, without the name."""
        variables: tuple[object, ...] = ()
        if self.may_set_variables:
            variables = (self.core_variables, tuple(self.logical_neuron_cores.items()), self.device_variables)
        resources = bytes(self.resources)
        asked = _converted_amounts(resources) if len(resources) <= _ORDINARY else resources
        return (asked, self.has_env, variables, self.may_take_lnc, self.restartPolicy)


_NO_QUEUES: Final = (None,) * 4


class Queues(Struct, frozen=True):
    """The labels and annotations that name a queue (`queues.QUEUE_KEYS`). Only their presence is read."""

    kueue: _Text = msgspec.field(name="kueue.x-k8s.io/queue-name", default=None)
    volcano: _Text = msgspec.field(name="scheduling.volcano.sh/queue-name", default=None)
    volcano_short: _Text = msgspec.field(name="volcano.sh/queue-name", default=None)
    yunikorn: _Text = msgspec.field(name="yunikorn.apache.org/queue", default=None)

    @property
    def has_queue(self) -> bool:
        """Whether one of them is present."""
        return (self.kueue, self.volcano, self.volcano_short, self.yunikorn) != _NO_QUEUES


_NO_SETTINGS: Final = (None,) * 5


class Annotations(Queues, frozen=True):
    """The annotations that conversion reads."""

    convert: str | None = msgspec.field(name=names.ANNOTATION_CONVERT, default=None)
    logical_neuron_core: str | None = msgspec.field(name=names.ANNOTATION_LNC, default=None)
    instance_type: str | None = msgspec.field(name=names.ANNOTATION_INSTANCE_TYPE, default=None)
    ultraserver_mode: str | None = msgspec.field(name=names.ANNOTATION_ULTRASERVER_MODE, default=None)
    round_cores: str | None = msgspec.field(name=names.ANNOTATION_ROUND_CORES, default=None)
    converted_from: str | None = msgspec.field(name=names.ANNOTATION_CONVERTED_FROM, default=None)
    mirror: str | None = msgspec.field(name=names.ANNOTATION_MIRROR_POD, default=None)
    template: str | None = msgspec.field(name=names.ANNOTATION_TEMPLATE, default=None)

    @property
    def sets_nothing(self) -> bool:
        """Whether no setting of conversion is present."""
        settings = (self.convert, self.logical_neuron_core, self.instance_type, self.ultraserver_mode, self.round_cores)
        return settings == _NO_SETTINGS


class Labels(Queues, frozen=True):
    """The labels that conversion reads."""

    converted: str | None = msgspec.field(name=names.LABEL_CONVERTED, default=None)


class PodMetadata(Struct, frozen=True):
    """`metadata`."""

    annotations: Annotations | None = None
    labels: Labels | None = None


class PodSpec(Struct, frozen=True):
    """`spec`."""

    containers: list[Container] | None = None
    initContainers: list[Container] | None = None  # noqa: N815
    nodeSelector: Raw = ABSENT  # noqa: N815
    affinity: Raw = ABSENT
    tolerations: Raw = ABSENT
    resourceClaims: Raw = ABSENT  # noqa: N815
    volumes: Raw = ABSENT
    schedulerName: str | None = None  # noqa: N815
    nodeName: str | None = None  # noqa: N815
    priorityClassName: str | None = None  # noqa: N815
    priority: Raw = ABSENT
    preemptionPolicy: Raw = ABSENT  # noqa: N815

    @property
    def computed_priority(self) -> tuple[str, ...]:
        """The fields that Kubernetes computes by the PriorityClass and that are set."""
        found = (("priority", self.priority), ("preemptionPolicy", self.preemptionPolicy))
        return tuple([name for name, value in found if value is not ABSENT])


class Pod(Struct, frozen=True):
    """A Pod, or the pod template of a workload: both have `metadata` and `spec`."""

    metadata: PodMetadata | None = None
    spec: PodSpec = PodSpec()

    @property
    def annotations(self) -> Annotations:
        """`metadata.annotations`; never None."""
        return (self.metadata.annotations if self.metadata else None) or _NO_ANNOTATIONS

    @property
    def labelled(self) -> bool:
        """Whether it has the label of converted pods. Users can set it: `records.find_conversion` decides."""
        labels = self.metadata.labels if self.metadata else None
        return labels is not None and labels.converted == "true"

    @property
    def shows_queue(self) -> bool:
        """Whether a label, an annotation or the scheduler's name shows a queue."""
        if self.spec.schedulerName in queues.SCHEDULERS:
            return True
        labels = self.metadata.labels if self.metadata else None
        return self.annotations.has_queue or (labels is not None and labels.has_queue)

    @property
    def containers(self) -> Sequence[Container]:
        """`spec.containers`; never None."""
        return self.spec.containers or ()

    @property
    def init_containers(self) -> Sequence[Container]:
        """`spec.initContainers`; never None."""
        return self.spec.initContainers or ()

    @property
    def host_devices(self) -> tuple[tuple[int, str], ...]:
        """Index and path of the volumes that are a Neuron device of the host, or all of its devices.

        Of all volumes, only these are part of the view: each pod has a volume with a name of its own for its token.
        """
        if self.spec.volumes is ABSENT:
            return ()
        raw = bytes(self.spec.volumes)
        if b"hostPath" not in raw or not mentions(raw, b"dev"):
            return ()
        volumes: list[dict[str, Any]] = _part(self.spec.volumes, _check_volumes, "spec.volumes") or []
        paths = ((index, (each.get("hostPath") or {}).get("path")) for index, each in enumerate(volumes))
        known = ((index, posixpath.normpath(path)) for index, path in paths if isinstance(path, str))
        return tuple(
            (index, "/" + path.lstrip("/")) for index, path in known if _HOST_DEVICE.fullmatch("/" + path.lstrip("/"))
        )

    def decode_claims(self) -> list[dict[str, Any]] | None:
        """`spec.resourceClaims` with all fields."""
        raw = self.spec.resourceClaims
        value: list[dict[str, object]] | None = (
            None if raw is ABSENT else _part(raw, _check_claims, "spec.resourceClaims")
        )
        return value

    def decode_node_selector(self) -> dict[str, str]:
        """`spec.nodeSelector`; never None."""
        raw = self.spec.nodeSelector
        value: dict[str, str] | None = None if raw is ABSENT else _part(raw, _check_node_selector, "spec.nodeSelector")
        return value or {}

    def decode_affinity(self) -> Affinity | None:
        """`spec.affinity` with all fields."""
        raw = self.spec.affinity
        value: Affinity | None = None if raw is ABSENT else _part(raw, _check_affinity, "spec.affinity")
        return value

    def decode_tolerations(self) -> list[dict[str, object]] | None:
        """`spec.tolerations` with all fields."""
        raw = self.spec.tolerations
        value: list[dict[str, object]] | None = (
            None if raw is ABSENT else _part(raw, _check_tolerations, "spec.tolerations", _is_list_of_objects)
        )
        return value

    def excess(self) -> Excess | None:
        """The first part that is larger than its limit. Decodes nothing."""
        spec = self.spec
        containers = len(self.containers) + len(self.init_containers)
        if containers > MOST_CONTAINERS:
            return Excess("spec", f"spec has {containers} containers, at most {MOST_CONTAINERS}")
        parts = {
            "affinity": spec.affinity,
            "nodeSelector": spec.nodeSelector,
            "tolerations": spec.tolerations,
            "resourceClaims": spec.resourceClaims,
        }
        for field, part in parts.items():
            if part is ABSENT:
                continue
            raw = bytes(part)
            if len(raw) > _LARGEST_PART:
                return Excess(f"spec.{field}", f"spec.{field} has {len(raw)} bytes, at most {_LARGEST_PART}")
            if len(raw) > _MOST_OBJECTS and (objects := raw.count(b"{")) > _MOST_OBJECTS:
                return Excess(f"spec.{field}", f"spec.{field} has {objects} entries, at most {_MOST_OBJECTS}")
        return None

    def repeated(self) -> tuple[str, str] | None:
        """Field path and name of the first container whose name an earlier container has.

        The API server refuses such a pod, but only after mutation. The record identifies containers by name.
        """
        seen: set[str] = set()
        for section, containers in (("initContainers", self.init_containers), ("containers", self.containers)):
            for index, container in enumerate(containers):
                if container.name in seen:
                    return f"spec.{section}[{index}].name", container.name
                seen.add(container.name)
        return None

    @property
    def concerns_us(self) -> bool:
        """Cheap pre-filter: may this Pod request Neuron devices, or was it converted?"""
        return self.labelled or any([each.may_ask for each in (*self.containers, *self.init_containers)])

    @property
    def container_names(self) -> tuple[str, ...]:
        """Names of all containers, app containers first."""
        return tuple([each.name for each in (*self.containers, *self.init_containers)])

    def sections(self) -> Iterator[tuple[str, Container, str]]:
        """Section, view and field path of each container, init containers first."""
        for section, containers in (("initContainers", self.init_containers), ("containers", self.containers)):
            for index, container in enumerate(containers):
                yield section, container, f"spec.{section}[{index}]"

    def key(self) -> Hashable:
        """Everything that a decision depends on: equal keys give equal decisions."""
        return (self.container_names, self.shape())

    def size_of_key(self) -> int:
        """Bytes of `key()`, at least."""
        spec = self.spec
        containers = (*self.containers, *self.init_containers)
        parts = [spec.nodeSelector, spec.affinity, spec.tolerations, spec.resourceClaims]
        texts = [spec.schedulerName, spec.nodeName, spec.priorityClassName]
        for each in containers:
            parts.append(each.resources)
            texts += (each.name, each.restartPolicy)
        if self.metadata is not None:
            for group in (self.metadata.annotations, self.metadata.labels):
                if group is not None:
                    texts += [text for text in msgspec.structs.astuple(group) if isinstance(text, str)]
        raw = sum([len(bytes(part)) for part in parts if part is not ABSENT])
        return raw + sum([len(text) for text in texts if text]) + _PER_CONTAINER * len(containers)

    def shape(self) -> Hashable:
        """Everything that a decision depends on, without the names of containers."""
        spec = self.spec
        return (
            self.metadata,
            spec.nodeSelector is not ABSENT and bytes(spec.nodeSelector),
            spec.affinity is not ABSENT and bytes(spec.affinity),
            spec.tolerations is not ABSENT and bytes(spec.tolerations),
            spec.resourceClaims is not ABSENT and bytes(spec.resourceClaims),
            self.host_devices,
            spec.schedulerName,
            spec.nodeName,
            spec.priorityClassName,
            spec.priority is ABSENT,
            spec.preemptionPolicy is ABSENT,
            *[each.shape() for each in self.containers],
            None,
            *[each.shape() for each in self.init_containers],
        )


_NO_ANNOTATIONS = Annotations()
_DECODER = msgspec.json.Decoder(Pod)

UnreadableError = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
"""Errors of decoding: the message has the field path and the expected type, or says that it is nested too deeply."""


class _AllLabels(Struct, frozen=True):
    labels: dict[str, str | None] | None = None


class _Labelled(Struct, frozen=True):
    metadata: _AllLabels | None = None


_LABELS_DECODER = msgspec.json.Decoder(_Labelled)


def decode_labels(raw: bytes | Raw) -> dict[str, str | None]:
    """All labels of a Pod. Not part of the view: some differ between replicas and would make every key unique.

    Raises:
        UnreadableError: it is not JSON, or a label is not a string.
    """
    metadata = _LABELS_DECODER.decode(raw).metadata
    return (metadata.labels if metadata else None) or {}


def place(error: BaseException) -> tuple[str, str]:
    """Field path of an `UnreadableError` (empty: the whole object), and its message without the path."""
    what, _, where = str(error).partition(" - at `$")
    path = where.rstrip("`").lstrip(".")
    return _MEMBER.sub(r"\1[\2]", path), what


_NOT_TEXT: Final = re.compile(r"Expected `str( \| null)?`, got `(bool|int|float)`")


def how_to_read(message: str, otherwise: str) -> str:
    """How to mend what a message of `place` says; `otherwise`: where a value is text, or should be none."""
    if _NOT_TEXT.fullmatch(message):
        return "It has to be text: write the value in quotes. YAML reads n, y, no, yes, on and off as booleans."
    return otherwise


def decode(raw: bytes | Raw) -> Pod:
    """Decode a Pod from JSON.

    Raises:
        UnreadableError: it is not JSON, or a field has the wrong type.
    """
    return _DECODER.decode(raw)


def view(manifest: object) -> Pod:
    """The view of a Pod or a pod template that is Python data, such as parsed YAML.

    Raises:
        UnreadableError: a field has the wrong type.
    """
    return decode(_encoded(manifest))


def _encoded(manifest: object) -> bytes:
    # YAML has types that JSON lacks, such as dates. No field of the view has such a type.
    try:
        return orjson.dumps(manifest, default=str, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_PASSTHROUGH_DATETIME)
    except orjson.JSONEncodeError:
        return json.dumps(manifest, default=str).encode()  # such as integers of more than 64 bits
