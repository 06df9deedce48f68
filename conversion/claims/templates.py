"""Generated ResourceClaimTemplates: the spec, and a name with the hash of the spec."""

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, Final

from neuron import names

_DIGEST_LENGTH: Final = 12
_SUMMARY_LENGTH: Final = 40

# A summary starts and ends with a letter or digit, because dashes separate it.
_NAME: Final = re.compile(
    rf"{names.TEMPLATE_PREFIX}[a-z0-9](?:[a-z0-9-]{{0,{_SUMMARY_LENGTH - 2}}}[a-z0-9])?"
    rf"-(?P<digest>[0-9a-f]{{{_DIGEST_LENGTH}}})"
)

_VERSION: Final = re.compile(r"[1-9][0-9]{0,8}", re.ASCII)

_LONGEST_NAME: Final = len(names.TEMPLATE_PREFIX) + _SUMMARY_LENGTH + 1 + _DIGEST_LENGTH

API_VERSION: Final = "resource.k8s.io/v1"
KIND: Final = "ResourceClaimTemplate"


def normalise(spec: object) -> object:
    """The spec (or a part) with the API server's defaults and no empty values, so that equivalent specs compare equal.

    Source: `k8s.io/kubernetes/pkg/apis/resource/v1/defaults.go` (allocationMode, count, toleration operator).
    """
    if isinstance(spec, Mapping):
        filled = dict(spec)
        if "deviceClassName" in filled:
            if not filled.get("allocationMode"):
                filled["allocationMode"] = "ExactCount"
            if filled["allocationMode"] == "ExactCount" and not filled.get("count"):
                filled["count"] = 1
            for toleration in filled.get("tolerations") or ():
                if isinstance(toleration, dict):
                    toleration.setdefault("operator", "Equal")
        items = {key: item if key == "parameters" else normalise(item) for key, item in filled.items()}
        return {key: item for key, item in items.items() if item not in (None, "", {}, [])}
    if isinstance(spec, list | tuple):
        return [normalise(item) for item in spec]
    return spec


def digest(spec: Mapping[str, object]) -> str:
    """Hash of a template spec; equal for equivalent specs."""
    return _hashed(_canonical(spec))


def _canonical(spec: Mapping[str, object]) -> bytes:
    return json.dumps(normalise(spec), sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _hashed(canonical: bytes) -> str:
    return hashlib.sha256(canonical).hexdigest()[:_DIGEST_LENGTH]


def is_generated(name: str) -> bool:
    """Whether `Template.make` can make `name`. Users can use such names, too."""
    return len(name) <= _LONGEST_NAME and _NAME.fullmatch(name) is not None


def is_unchanged(name: str, annotations: Mapping[str, str], spec: Mapping[str, object]) -> bool:
    """Whether a template has the spec with which it was created: the hash in its name, or in its annotation, fits."""
    match = _NAME.fullmatch(name) if len(name) <= _LONGEST_NAME else None
    recorded = match["digest"] if match is not None else annotations.get(names.ANNOTATION_TEMPLATE_DIGEST)
    return recorded is not None and recorded == digest(spec)


def version_of(item: Mapping[str, Any]) -> int:
    """The version of a stored template that the webhook made for a ClaimTemplate policy and nobody changed; else 0.

    Only such a template is replaced by one of a later version.
    """
    metadata, spec = item["metadata"], item["spec"]
    annotations = metadata.get("annotations") or {}
    written = annotations.get(names.ANNOTATION_TEMPLATE_VERSION) or ""
    if not _VERSION.fullmatch(written) or not is_written_by_us(metadata):
        return 0
    return int(written) if is_unchanged(metadata["name"], annotations, spec) else 0


def is_written_by_us(metadata: Mapping[str, Any]) -> bool:
    """Whether a stored template has our label, and only the webhook wrote it (`metadata.managedFields`)."""
    managers = {entry.get("manager") for entry in metadata.get("managedFields") or ()}
    ours = (metadata.get("labels") or {}).get(names.LABEL_MANAGED_BY) == names.MANAGER
    return ours and managers == {names.MANAGER} and not metadata.get("ownerReferences")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Template:
    """A ResourceClaimTemplate that the webhook creates. The same demand gives a generated one the same name everywhere.

    Attributes:
        name: `neuron-<summary>-<digest>`, at most 63 characters; or the name that a policy gives.
        spec: the ResourceClaimTemplateSpec (`resource.k8s.io/v1`), JSON-like.
        digest: `digest(spec)`.
        policy: the policy that carries it; empty for a generated template.
        version: that of a ClaimTemplate policy, from 1; 0: another template.
        size: bytes of the spec as JSON, of a generated template; 0: not counted.
        has_alternatives: whether a request of the claim has alternatives (`firstAvailable`).
    """

    name: str
    spec: Mapping[str, Any]
    digest: str
    policy: str = ""
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    annotations: Mapping[str, str] = dataclasses.field(default_factory=dict)
    size: int = 0
    version: int = 0
    has_alternatives: bool = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        # A policy with a spec of other types is not loaded. Without a spec, only the name is known.
        inner = self.spec.get("spec")
        devices = inner.get("devices") if isinstance(inner, dict) else None
        requests = devices.get("requests") if isinstance(devices, dict) else None
        found = requests if isinstance(requests, list | tuple) else ()
        alternatives = any([isinstance(each, dict) and "firstAvailable" in each for each in found])
        object.__setattr__(self, "has_alternatives", alternatives)

    @classmethod
    def make(cls, summary: str, spec: Mapping[str, object]) -> "Template":
        """Name a spec. `summary`: the readable part; lower-case letters, digits and dashes."""
        canonical = _canonical(spec)
        fingerprint = _hashed(canonical)
        readable = summary[:_SUMMARY_LENGTH].strip("-")
        return cls(f"{names.TEMPLATE_PREFIX}{readable}-{fingerprint}", spec, fingerprint, size=len(canonical))

    def manifest(self, namespace: str = "") -> dict[str, object]:
        """The object to create. Empty `namespace`: not set."""
        labels = {**self.labels, names.LABEL_MANAGED_BY: names.MANAGER}
        metadata: dict[str, object] = {"name": self.name, "labels": labels}
        if self.policy:
            # Its name does not say what it contains. Prune removes only what was not changed since.
            annotations = {**self.annotations, names.ANNOTATION_TEMPLATE_DIGEST: self.digest}
            if self.version:
                annotations[names.ANNOTATION_TEMPLATE_VERSION] = str(self.version)
            metadata["annotations"] = annotations
        if namespace:
            metadata["namespace"] = namespace
        return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": dict(self.spec)}
