"""`/validate`: dispatches a review, remembers decisions, and asks the cluster where memory does not say enough.

Claims, templates and DeviceClasses are judged by `neuron.validate_claims`, pods and workloads by
`check_pods` and `check_workloads` in `webhook.decisions`. Whatever is not about Neuron devices passes untouched.
"""

import dataclasses
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from neuron import names
from neuron.check_configs import ratcheted
from neuron.claim_specs import GROUP, ClaimSpec
from neuron.findings import Finding, Severity
from neuron.instances import Catalogue
from neuron.validate_claims import ClaimJudgement, ClaimWorld, judge_claim, validate
from webhook.claim_world import claim_world
from webhook.decisions import check_workloads, pods
from webhook.decisions.check_pods import KnownClaim, check_pod, claim_names
from webhook.decisions.decision import Decision, Outcome, unchanged
from webhook.decisions.modes import Mode
from webhook.decisions.records import find_conversion
from webhook.decisions.steering import NO_STEERING, SteerTemplate
from webhook.decisions.world import ConversionOptions, World, conversion_world
from webhook.device_selectors import DeviceSelectors
from webhook.edge import nesting
from webhook.edge.wire import ABSENT, AdmissionRequest
from webhook.lane import Inline, Lane
from webhook.messages import fitting
from webhook.offline.manifests import POD_TEMPLATES, Manifest, path_text
from webhook.ports import ValidationView

_REMEMBERED: Final = 256
_LONGEST_AUDIT: Final = 256


class _Object(Struct, frozen=True):
    """What is read of any object; the rest of it decides nothing."""

    spec: Raw = ABSENT


class _Opaque(Struct, frozen=True):
    parameters: Raw = ABSENT


class _Config(Struct, frozen=True):
    opaque: _Opaque | None = None


class _Devices(Struct, frozen=True):
    config: list[_Config] | None = None


class _Claim(Struct, frozen=True):
    devices: _Devices | None = None


class _Template(Struct, frozen=True):
    spec: _Claim | None = None


_decode: Final = msgspec.json.Decoder(_Object).decode
_SHAPES: Final = {"ResourceClaim": _Claim, "ResourceClaimTemplate": _Template, "DeviceClass": _Devices}


class Validator:
    """Decides whether objects may stay as they are.

    What a claim's spec says decides about it, so the claims of all replicas, and the template they come from, are
    judged once; a decision is forgotten when the catalogue, the slices or the DeviceClasses change. What policies say
    about conversion counts for the pods of workloads; `unconnected` counts for every claim, as no claim says whose it
    is.
    """

    def __init__(
        self,
        options: ConversionOptions,
        catalogue: Catalogue,
        cluster: ValidationView,
        steer: SteerTemplate | None = None,
        *,
        unconnected: bool = False,
        lane: Lane | None = None,
    ) -> None:
        self._lane = lane or Inline()
        self._steer = steer
        self._unconnected = unconnected
        self._options = options
        self._catalogue = catalogue
        self._cluster = cluster
        self._decisions: OrderedDict[Hashable, Decision] = OrderedDict()
        self._judgements: OrderedDict[tuple[str, str], ClaimJudgement] = OrderedDict()
        self._look()

    async def review(self, request: AdmissionRequest) -> Decision:
        """Answer one review.

        Never raises for what the object holds: an object that cannot be read is refused, with the field.
        """
        kind = request.kind
        if request.subResource or request.operation not in ("CREATE", "UPDATE"):
            return _SUBRESOURCE if request.subResource else _OPERATION
        if request.namespace in self._options.excluded_namespaces:
            return _EXCLUDED
        if self._seen != (self._cluster.version, self._cluster.claim_version):
            self._look()
        try:
            if kind.group == GROUP and kind.kind in _SHAPES:
                return self._review_claim(request)
            if kind.group == "" and kind.kind == "Pod":
                return await self._review_pod(request)
            return await self._review_workload(request)
        except pods.UnreadableError as error:
            return _decision([_unreadable(request, error)], "unreadable")

    def _look(self) -> None:
        """Take in what the cluster knows."""
        self._seen = (self._cluster.version, self._cluster.claim_version)
        self._conversion: World = conversion_world(self._options, self._catalogue, self._cluster)
        world = claim_world(self._options, self._conversion.catalogue, self._cluster)
        self._world: ClaimWorld = dataclasses.replace(world, unconnected=self._unconnected)
        self._decisions.clear()
        self._judgements.clear()

    def _for_one_object(self) -> ClaimWorld:
        """The world, with an engine whose patience is for one object."""
        return dataclasses.replace(self._world, engine=DeviceSelectors())

    # --- claims -------------------------------------------------------------------------------------------------

    def _review_claim(self, request: AdmissionRequest) -> Decision:
        spec = bytes(_decode(request.object).spec)
        old = b""
        if request.operation == "UPDATE" and bytes(request.oldObject) != bytes(ABSENT):
            old = bytes(_decode(request.oldObject).spec)
            if spec == old:
                # The specs of claims and templates never change, and whoever wants to delete a bad one has to be
                # able to take its finalizers off.
                return _SAME_SPEC
        key = (request.kind.kind, request.kind.version, spec, old)
        decision = self._decisions.get(key)
        if decision is not None:
            self._decisions.move_to_end(key)
            return decision
        findings = self._judge(request, spec)
        if old:
            findings = ratcheted(findings, self._judge(request, old))
        decision = self._decisions[key] = _decision(findings, "valid")
        if len(self._decisions) > _REMEMBERED:
            self._decisions.popitem(last=False)
        return decision

    def _judge(self, request: AdmissionRequest, raw: bytes) -> tuple[Finding, ...]:
        kind, api_version = request.kind.kind, f"{GROUP}/{request.kind.version}"
        spec = read_spec(kind, raw)
        return validate(kind, api_version, spec, self._for_one_object(), accepted=True)

    def _known(self, namespace: str, name: str, spec: ClaimSpec) -> ClaimJudgement:
        """What a template that the cache has asks for."""
        judgement = self._judgements.get((namespace, name))
        if judgement is None or judgement.spec is not spec:
            judgement = self._judgements[namespace, name] = judge_claim(spec, self._for_one_object())
            if len(self._judgements) > _REMEMBERED:
                self._judgements.popitem(last=False)
        return judgement

    # --- pods and workloads ---------------------------------------------------------------------------------------

    async def _review_pod(self, request: AdmissionRequest) -> Decision:
        if request.operation != "CREATE":
            return _OPERATION  # claims and containers of a pod cannot change
        pod = pods.decode(request.object)
        if bytes(pod.spec.resourceClaims) in _NOTHING and not pod.labelled:
            return _NOT_NEURON
        known = await self._claims(pod, request.namespace)
        return _decision(check_pod(pod, known, self._world), "valid")

    async def _review_workload(self, request: AdmissionRequest) -> Decision:
        kind = request.kind
        if (kind.group, kind.kind) not in POD_TEMPLATES:
            return _UNKNOWN_KIND
        raw = bytes(request.object)
        if not any(needle in raw for needle in _NEEDLES):
            return _NOT_NEURON
        if request.operation == "UPDATE" and bytes(_decode(request.object).spec) == bytes(
            _decode(request.oldObject).spec
        ):
            return _SAME_SPEC
        manifest = Manifest((), nesting.decode(raw), kind.group, kind.kind, request.namespace, request.name)
        facts = self._cluster.namespace(request.namespace)
        findings: list[Finding] = []
        modes: set[int] = set()
        for steps, template in manifest.pod_templates():
            pod = pods.view(template)
            known = await self._claims(pod, request.namespace)
            path = path_text(steps)
            steering = NO_STEERING
            if self._steer is not None and pod.concerns_us:
                steering = self._steer(template, request.namespace)
            findings += check_workloads.check_template(path, pod, known, facts, self._conversion, self._world, steering)
            modes |= check_workloads.ultraserver_modes(pod, known, facts, Mode(self._options.mode))
        findings += check_workloads.check_size(kind.kind, manifest.data, modes)
        return _decision(check_workloads.as_warnings(kind.kind, findings), "valid")

    async def _claims(self, pod: pods.Pod, namespace: str) -> dict[str, KnownClaim]:
        """What is known of a pod's claims; asks the API server, once, for what the caches do not have."""
        ours = find_conversion(pod)
        known = {}
        unknown: dict[str, dict[str, str]] = {}
        for name, kind, object_name in claim_names(pod):
            spec = self._cluster.claim_template(namespace, object_name) if kind == "ResourceClaimTemplate" else None
            if spec is not None:
                known[name] = KnownClaim(self._known(namespace, object_name, spec))
            elif ours is None or ours.claim != name:
                unknown.setdefault(kind, {})[name] = object_name
        for kind, wanted in unknown.items():
            exist = await self._cluster.exist(kind, namespace, dict.fromkeys(wanted.values()))
            known |= {name: KnownClaim(missing=exist[object_name] is False) for name, object_name in wanted.items()}
        return known


def read_spec(kind: str, raw: bytes) -> Any:
    """A `spec` as Python data, in which `opaque.parameters` are raw JSON: only so can a repeated key be seen.

    Raises:
        pods.UnreadableError: it is not JSON, or nested too deeply.
    """
    spec: Any = nesting.decode(raw)
    try:
        typed: Any = msgspec.json.decode(raw, type=_SHAPES[kind])
    except msgspec.ValidationError:
        return spec  # some type is wrong: reading it will say which
    data: Any = spec
    if kind == "ResourceClaimTemplate":
        data, typed = (spec or {}).get("spec"), typed and typed.spec
    if kind != "DeviceClass":
        data, typed = (data or {}).get("devices"), typed and typed.devices
    for entry, shape in zip((data or {}).get("config") or (), (typed and typed.config) or (), strict=False):
        if shape.opaque is not None and bytes(shape.opaque.parameters) not in _NOTHING:
            entry["opaque"]["parameters"] = bytes(shape.opaque.parameters)
    return spec


def _unreadable(request: AdmissionRequest, error: Exception) -> Finding:
    message = f"the object is not a readable {request.kind.kind}: {error}."
    return Finding("NEU114", "", message, "Compare it with the API reference of its kind.")


def _decision(findings: Iterable[Finding], reason: str) -> Decision:
    """Refuse for errors, and otherwise let pass; say everything at once."""
    errors = tuple(finding for finding in findings if finding.severity is Severity.ERROR)
    warnings = tuple(line for finding in findings if finding.severity is Severity.WARNING for line in fitting(finding))
    codes = ",".join(dict.fromkeys(finding.code for finding in (*errors, *warnings)))
    return Decision(
        Outcome.DENIED if errors else Outcome.UNCHANGED,
        "invalid" if errors and reason == "valid" else reason,
        errors=errors,
        warnings=warnings,
        audit={"findings": codes[:_LONGEST_AUDIT]} if codes else {},
    )


_NOTHING: Final = (b"", b"null")
_NEEDLES: Final = (names.RESOURCE_NEURON.encode(), b"laims", b"\\u")
"""One of them is in every workload that could concern us: the resources' names, `claims` or `resourceClaims`, or an
escape, which could spell them differently."""
_SUBRESOURCE: Final = unchanged("subresource")
_OPERATION: Final = unchanged("operation")
_EXCLUDED: Final = unchanged("excluded-namespace")
_SAME_SPEC: Final = unchanged("spec-unchanged")
_NOT_NEURON: Final = unchanged("not-neuron")
_UNKNOWN_KIND: Final = unchanged("unknown-kind")
