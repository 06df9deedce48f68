"""`/validate`: dispatches reviews, caches decisions, and queries the API server for objects that no cache has.

`checks.claims.judging` checks claims, templates and DeviceClasses; `conversion.decide` checks pods and workloads.
Objects without Neuron devices are allowed.
"""

import dataclasses
import functools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from checks.claims.configs import ratcheted
from checks.claims.judging import ClaimContext, ClaimJudgement, ReadSpec, for_one_object, judge_claim, judge_read
from checks.words import misspelt_keys_in
from cluster.store import Store
from conversion.asks.conversion_context import ConversionContext, ConversionOptions, conversion_context
from conversion.asks.pod_demand import Claiming, ClaimNames, KnownClaim
from conversion.asks.steering import NO_STEERING, Steering
from conversion.claims.templates import API_VERSION, KIND
from conversion.decide import DecisionInputs, PodFacts, check_created, templates_of_record
from conversion.findings.named_templates import KnownTemplates
from conversion.findings.pod_findings import resized
from conversion.objects import nesting, pods
from conversion.objects.kinds import KINDS
from conversion.objects.wire import ABSENT, AdmissionRequest, GroupVersionKind
from conversion.patches.decision import Decision, Outcome, unchanged
from neuron import names
from neuron.api.claim_reader import read_claim
from neuron.api.claim_specs import GROUP, ClaimSpec
from neuron.api.fields import mapping
from neuron.findings import Finding, Severity, for_answer
from neuron.hardware.instances import Catalogue
from policies.judging.selectors import ClaimPolicies, claim_context
from runtime.remembered import Remembered, fingerprint
from webhook.reviews import effort
from webhook.reviews.claim_reading import KINDS as CLAIM_KINDS
from webhook.reviews.claim_reading import decode, read_specs, shape_of
from webhook.reviews.reviewer import SteerTemplate, before_waiting, fitting, unreadable
from webhook.reviews.worker_threads import LARGE_OBJECT, Inline, Lane, on_loop_or_in, working_time
from webhook.reviews.workloads import MOST_CLAIMS, check_workload, read_workload

if TYPE_CHECKING:
    from webhook.reviews.policy_steering import ClaimBounds


_DECISIONS: Final = 1024 * 1024
"""Bytes of cached decisions about claims."""
_JUDGEMENTS: Final = 4 * 1024 * 1024
"""Bytes of judged templates of the cluster."""
_NOTHING_MADE: Final[Mapping[str, ClaimSpec]] = {}
_NOTHING_KNOWN: Final[Mapping[str, KnownClaim]] = {}
_FEW_TEMPLATES: Final = 4
"""Pod templates of a workload that are checked on the event loop, a few milliseconds each."""
_SMALL_SPEC: Final = 4 * 1024
"""Bytes of a spec that is decoded on the event loop, in at most a few milliseconds. Few specs are larger."""
_FEW_VALUES: Final = 192
"""Commas of such a spec: each value can be wrong, which takes more to say than to read. 32 requests have 128."""
_PER_FINDING: Final = 512
_PER_LEAF: Final = 512
_LONGEST_AUDIT: Final = 256


class Validator:
    """Validates claims, templates, DeviceClasses, pods and workloads.

    A decision about a claim depends only on its spec, so the claims of all replicas and their template share one cached
    decision; the cache is cleared when the catalogue, the ResourceSlices or the DeviceClasses change. The lane decides
    about large objects and new selectors.
    """

    def __init__(
        self,
        options: ConversionOptions,
        catalogue: Catalogue,
        cluster: Store,
        steer: SteerTemplate | None = None,
        *,
        policies: ClaimPolicies | None = None,
        lane: Lane | None = None,
        bounds: "ClaimBounds | None" = None,
        finds: Callable[[bytes], object] | None = None,
    ) -> None:
        """Validate with these settings and facts.

        `steer` finds the policies of a workload's pods, `policies` are for claims, `bounds` checks claims that a policy
        binds. `finds` is as `named` of `Mutator`.
        """
        self._finds = finds
        self._bounds = bounds
        self._lane = lane or Inline()
        self._steer = steer
        self._policies = policies
        self._options = options
        self._catalogue = catalogue
        self._cluster = cluster
        self._decisions: Remembered[Hashable, Decision] = Remembered(_DECISIONS)
        self._judgements: Remembered[tuple[str, str], ClaimJudgement] = Remembered(_JUDGEMENTS)
        self._refresh()

    async def review(self, request: AdmissionRequest) -> Decision:
        """Answer one review.

        An unreadable object is denied with the path of the field; it raises nothing.
        """
        if request.subResource or request.operation not in ("CREATE", "UPDATE"):
            return _SUBRESOURCE if request.subResource else _OPERATION
        if request.namespace in self._options.excluded_namespaces:
            return _EXCLUDED
        # From here on, the caches have the facts of now.
        if self._seen != (self._cluster.version, self._cluster.claim_version):
            self._refresh()
        kind = request.kind
        try:
            if kind.group == GROUP and kind.kind in CLAIM_KINDS:
                return await self._review_claim(request)
            if kind.group == "" and kind.kind == "Pod":
                return await self._review_pod(request)
            return await self._review_workload(request)
        except pods.UnreadableError as error:
            return _decision([unreadable(request, error)], "unreadable")

    def _refresh(self) -> None:
        self._seen = (self._cluster.version, self._cluster.claim_version)
        self._conversion: ConversionContext = conversion_context(self._options, self._catalogue, self._cluster)
        self._context: ClaimContext = claim_context(
            self._options, self._conversion.catalogue, self._cluster, self._policies
        )
        self._decisions.clear()
        self._judgements.clear()

    # --- claims -------------------------------------------------------------------------------------------------

    async def _review_claim(self, request: AdmissionRequest) -> Decision:
        claim = _read_claim(request)
        if isinstance(claim, Decision):
            return claim
        context = self._context
        decision = self._decisions.get(claim.key)
        if decision is None and claim.shape is not None and self._decisions.get(claim.shape) is not None:
            return _VALID  # one that differs in the names of its requests only
        if decision is None and claim.small and _are_quick(claim.specs, context):
            decision = _judge_specs(claim.specs, context)
            self._keep(claim, decision)
        if decision is None:
            if claim.small:
                seconds = effort.of_judging(claim.specs, len(claim.spec) + len(claim.old), context)
            else:
                seconds = effort.of_unread(claim.spec) + effort.of_unread(claim.old)
            # A long spec is read in the lane, too: what is wrong with it takes time to say.
            decision = await self._lane.run(
                request.namespace, lambda: _judge_specs(claim.specs, context), seconds, (id(context), claim.key)
            )
            if context is self._context:
                self._keep(claim, decision)
        return decision

    def _keep(self, claim: "_ReviewedClaim", decision: Decision) -> None:
        size = len(claim.spec) + len(claim.old) if claim.small else 0
        # The rendered answer has each text up to twice.
        size += 3 * sum(map(_length, (*decision.errors, *decision.warnings)))
        self._decisions.put(claim.key, decision, size)
        if claim.shape is not None and decision == _VALID:
            self._decisions.put(claim.shape, _VALID, len(claim.spec))

    async def _judge_templates(self, declared: ClaimNames, namespace: str) -> None:
        """Judge templates of a pod that take long in the lane; `_known` then finds the results in the cache."""
        context = self._context
        unknown: dict[str, ClaimSpec] = {}
        for _, kind, name in declared:
            spec = self._cluster.claim_template(namespace, name) if kind == "ResourceClaimTemplate" else None
            judgement = self._judgements.get((namespace, name))
            if spec is not None and (judgement is None or judgement.spec is not spec):
                unknown[name] = spec
        specs = [ReadSpec(spec, ()) for spec in unknown.values()]
        if not specs or _are_quick(specs, context):
            return

        def work() -> dict[str, ClaimJudgement]:
            # One engine: all templates of a pod share its time limit of one second.
            bounded = for_one_object(context, working_time)
            return {name: judge_claim(spec, bounded) for name, spec in unknown.items()}

        key = (id(context), "templates", namespace, tuple(unknown), *map(id, unknown.values()))
        seconds = effort.of_judging(specs, 0, context)
        judgements = await self._lane.run(namespace, work, seconds, key)
        if context is self._context:
            for name, judgement in judgements.items():
                self._remember(namespace, name, judgement)

    def _known(self, namespace: str, name: str, spec: ClaimSpec) -> ClaimJudgement:
        """The judgement of a template that the watch cache has."""
        judgement = self._judgements.get((namespace, name))
        if judgement is None or judgement.spec is not spec:
            judgement = judge_claim(spec, for_one_object(self._context))
            self._remember(namespace, name, judgement)
        return judgement

    def _remember(self, namespace: str, name: str, judgement: ClaimJudgement) -> None:
        size = _PER_LEAF * len(judgement.leaves) + sum(map(_length, judgement.findings))
        self._judgements.put((namespace, name), judgement, size)

    # --- pods and workloads ---------------------------------------------------------------------------------------

    async def _review_pod(self, request: AdmissionRequest) -> Decision:
        if request.operation != "CREATE":
            return _OPERATION  # claims and containers of a pod cannot change
        raw, namespace = bytes(request.object), request.namespace
        large = len(raw) > LARGE_OBJECT
        if not large:
            claiming = Claiming.of(pods.decode(raw))
        elif any(needle in raw for needle in _POD_NEEDLES):
            reading = effort.of_reading(len(raw))
            claiming = await self._lane.run(namespace, lambda: Claiming.of(pods.decode(raw)), reading)
        else:
            return _NOT_NEURON
        empty = claiming.is_empty
        if empty and not large:
            return self._checked(claiming, raw, empty)
        check = functools.partial(self._checked, claiming, raw, empty)
        if not empty:
            declared = claiming.names[:MOST_CLAIMS]
            await self._judge_templates(declared, namespace)
            made = await self._made(claiming.pod, declared, raw, namespace)
            known = await self._claims(declared, namespace, made)
            bound: list[Finding] = []
            if self._bounds is not None:
                bound = await self._bounds.check(request, claiming, known, self._context, self._conversion)
            check = functools.partial(check, known, bound, self._cluster.resizers(namespace))
        return await self._lane.run(namespace, check, effort.of_deciding(len(raw))) if large else check()

    def _checked(
        self,
        claiming: Claiming,
        raw: bytes,
        empty: bool,
        known: Mapping[str, KnownClaim] = _NOTHING_KNOWN,
        bound: Iterable[Finding] = (),
        resizers: Mapping[tuple[str, str], str] | None = None,
    ) -> Decision:
        """The decision about a pod.

        Args:
            empty: whether it declares no claim, and was not converted.
            bound: findings about its claims by policies that bind them.
        """
        pod = claiming.pod
        extended = self._conversion.extended_resources
        found = [*check_created(claiming, known, self._context, extended, refers=not empty), *bound]
        others = empty and pod.annotations.template is None
        keys = misspelt_keys_in(raw)
        if keys and (not others or pod.concerns_us):
            found += keys
        if resizers:  # The owner of a pod is not in its view.
            found += resized("Pod", mapping(nesting.decode(raw)), resizers)
        return _NOT_NEURON if others and not found else _decision(found, "valid")

    async def _review_workload(self, request: AdmissionRequest) -> Decision:
        kind = request.kind
        if (kind.group, kind.kind) not in KINDS:
            return _UNKNOWN_KIND
        raw = bytes(request.object)
        if KINDS[kind.group, kind.kind].check is None and not any(needle in raw for needle in _NEEDLES):
            return _NOT_NEURON
        if request.operation == "UPDATE" and bytes(decode(request.object).spec) == bytes(
            decode(request.oldObject).spec
        ):
            return _SAME_SPEC
        small = len(raw) <= LARGE_OBJECT
        read_it = functools.partial(read_workload, request, raw)
        if small:
            workload = read_it()
        else:
            workload = await self._lane.run(request.namespace, read_it, effort.of_reading(len(raw)))
        small = small and len(workload.pods) <= _FEW_TEMPLATES
        names_some = self._finds is not None and bool(self._finds(raw))
        found: list[PodFacts] = []
        for each, declared in workload.pods:
            if each.pod is None:
                found.append(each)
                continue
            await self._judge_templates(declared, request.namespace)
            steering = NO_STEERING
            binds = self._bounds is not None and bool(declared)
            if self._steer is not None and (binds or each.pod.concerns_us or names_some):
                steering = self._steer(each.place.template, request.namespace, workload.data)
            known = await self._claims(declared, request.namespace, _specs(steering))
            found.append(dataclasses.replace(each, known=known, steering=steering))
        context = self._context
        # Templates that policies name for the pods, as the caches have them.
        wanted = {each.name for facts in found for each in facts.steering.templates if each.inline is None}
        specs = {name: self._cluster.claim_template(request.namespace, name) for name in wanted}
        inputs = DecisionInputs(
            self._cluster.namespace(request.namespace),
            self._conversion,
            lambda: context,
            KnownTemplates(request.namespace, specs, complete=self._cluster.device_classes() is not None),
            resizers=self._cluster.resizers(request.namespace),
        )
        missing = await self._missing(workload.shared, request.namespace)
        check = functools.partial(check_workload, workload, request.namespace, found, inputs, missing)
        if small:
            findings = await on_loop_or_in(self._lane, request.namespace, check, len(raw))
        else:
            findings = await self._lane.run(request.namespace, check, effort.of_deciding(len(raw)))
        return _decision(findings, "valid")

    async def _missing(self, claims: Iterable[tuple[str, str]], namespace: str) -> frozenset[tuple[str, str]]:
        wanted: dict[str, dict[str, None]] = {}
        for kind, name in claims:
            wanted.setdefault(kind, {})[name] = None
        missing: set[tuple[str, str]] = set()
        for kind, known in wanted.items():
            await before_waiting()
            exist = await self._cluster.exist(kind, namespace, known)
            missing |= {(kind, name) for name, exists in exist.items() if exists is False}
        return frozenset(missing)

    async def _made(self, pod: pods.Pod, declared: ClaimNames, raw: bytes, namespace: str) -> Mapping[str, ClaimSpec]:
        """Templates that no cache has yet: of the conversion of a pod, and of ClaimTemplate policies that it names.

        In a dry run none is made. Only names are taken from the pod; what the templates contain is computed.
        """
        templates = [name for _, kind, name in declared if kind == "ResourceClaimTemplate"]
        wanted = {name for name in templates if self._cluster.claim_template(namespace, name) is None}
        carried = self._finds is not None and bool(wanted) and bool(self._finds(raw))
        if not wanted or not (pod.labelled or carried):
            return _NOTHING_MADE
        facts, context, steering = self._cluster.namespace(namespace), self._conversion, NO_STEERING
        if self._steer is not None:
            read = functools.partial(nesting.decode, raw)
            reading = effort.of_reading(len(raw))
            data = read() if len(raw) <= LARGE_OBJECT else await self._lane.run(namespace, read, reading)
            steering = self._steer(data, namespace)

        def compute() -> Mapping[str, ClaimSpec]:
            found = _specs(steering)
            if not pod.labelled or found.keys() >= wanted:
                return found
            for each in templates_of_record(pod, facts, context, steering):
                if each.spec:
                    found.setdefault(each.name, read_claim(KIND, API_VERSION, each.spec)[0])
                if found.keys() >= wanted:
                    break
            return found

        return await on_loop_or_in(self._lane, namespace, compute, len(raw))

    async def _claims(
        self, declared: ClaimNames, namespace: str, made: Mapping[str, ClaimSpec] = _NOTHING_MADE
    ) -> dict[str, KnownClaim]:
        """The facts about a pod's claims; queries the API server once per kind for objects that no cache has.

        `made`: templates of its conversion that no cache has.
        """
        known = {}
        unknown: dict[str, dict[str, str]] = {}
        for name, kind, object_name in declared:
            spec = self._cluster.claim_template(namespace, object_name) if kind == "ResourceClaimTemplate" else None
            if spec is not None:
                known[name] = KnownClaim(self._known(namespace, object_name, spec))
            elif kind == "ResourceClaimTemplate" and object_name in made:
                known[name] = KnownClaim(judge_claim(made[object_name], for_one_object(self._context)))
            else:
                unknown.setdefault(kind, {})[name] = object_name
        for kind, wanted in unknown.items():
            await before_waiting()
            exist = await self._cluster.exist(kind, namespace, dict.fromkeys(wanted.values()))
            known |= {name: KnownClaim(missing=exist[object_name] is False) for name, object_name in wanted.items()}
        return known


def _specs(steering: Steering) -> dict[str, ClaimSpec]:
    """The templates of ClaimTemplate policies that a pod names, by name."""
    return {each.name: read_claim(KIND, API_VERSION, each.spec)[0] for each in steering.named}


class _ReviewedClaim:
    """The spec of a claim, a template or a DeviceClass in a review.

    Attributes:
        spec: as JSON.
        old: the spec before an update; else empty.
        small: whether it is decoded on the event loop.
    """

    __slots__ = ("_kind", "_shape", "_specs", "key", "old", "small", "spec")

    def __init__(self, kind: GroupVersionKind, spec: bytes, old: bytes) -> None:
        self._kind = kind
        self._shape: Hashable | None = None
        self._specs: list[ReadSpec] | None = None
        self.spec = spec
        self.old = old
        self.small = len(spec) + len(old) <= _SMALL_SPEC and spec.count(b",") + old.count(b",") <= _FEW_VALUES
        self.key: Hashable = (kind.kind, kind.version, spec, old)
        if not self.small:
            self.key = fingerprint(kind.kind.encode(), kind.version.encode(), spec, old)

    @property
    def shape(self) -> Hashable | None:
        """The spec without what its check does not read; None if a decision depends on the names of its requests."""
        if self._shape is None:
            shape = shape_of(self._kind.kind, self._kind.version, self.spec) if self.small and not self.old else None
            self._shape = _SHAPELESS if shape is None else shape
        return None if self._shape is _SHAPELESS else self._shape

    @property
    def specs(self) -> list[ReadSpec]:
        """The new spec, and the old one if there is one.

        Raises:
            pods.UnreadableError: one is not JSON, or nested too deeply.
        """
        if self._specs is None:
            self._specs = read_specs(self._kind.kind, f"{GROUP}/{self._kind.version}", self.spec, self.old)
        return self._specs


def _read_claim(request: AdmissionRequest) -> _ReviewedClaim | Decision:
    """The claim of a review, or the decision if its spec has not changed. Raises pods.UnreadableError."""
    spec = bytes(decode(request.object).spec)
    old = b""
    if request.operation == "UPDATE" and bytes(request.oldObject) != bytes(ABSENT):
        old = bytes(decode(request.oldObject).spec)
        if spec == old:
            # Such specs are immutable, and a user must be able to remove the finalizers of a bad object.
            return _SAME_SPEC
    return _ReviewedClaim(request.kind, spec, old)


def _are_quick(specs: Sequence[ReadSpec], context: ClaimContext) -> bool:
    """Whether specs can be judged on the event loop: few units of work, and no selector to compile or evaluate."""
    memory = context.memory
    if memory is None or effort.units_of_judging(specs) > effort.JUDGED_ON_THE_LOOP:
        return False
    return all([memory.get(each) is not None for spec in specs for each in spec.expressions(context.classes)])


def _judge_specs(specs: Iterable[ReadSpec], context: ClaimContext) -> Decision:
    """Judge a spec; findings that the old spec has too are only warnings (ratcheting). Pure."""
    context = for_one_object(context, working_time)
    findings, *before = [judge_read(each, context, accepted=True) for each in specs]
    return _decision(ratcheted(findings, before[0]) if before else findings, "valid")


def _length(finding: Finding) -> int:
    return _PER_FINDING + len(finding.path) + len(finding.message) + len(finding.fix)


def _decision(findings: Iterable[Finding], reason: str) -> Decision:
    """Deny if a finding is an error, else allow; the answer has all findings up to its limit."""
    found = tuple(findings)
    if not found and reason == "valid":
        return _VALID
    errors = for_answer(finding for finding in found if finding.severity is Severity.ERROR)
    warned = for_answer(finding for finding in found if finding.severity is Severity.WARNING)
    warnings = tuple(line for finding in warned for line in fitting(finding))
    codes = ",".join(dict.fromkeys(finding.code for finding in (*errors, *warnings)))
    return Decision(
        Outcome.DENIED if errors else Outcome.UNCHANGED,
        "invalid" if errors and reason == "valid" else reason,
        errors=errors,
        warnings=warnings,
        audit={"findings": codes[:_LONGEST_AUDIT]} if codes else {},
    )


_NEURON: Final = names.RESOURCE_NEURON.encode()
_NEEDLES: Final = (_NEURON, b"laims", b"\\u")
"""Pre-filter: every workload with Neuron devices contains one of these: a resource name, `claims` or `resourceClaims`,
or an escape that can encode them."""
_POD_NEEDLES: Final = (b"resourceClaims", _NEURON, names.LABEL_CONVERTED.encode(), b"\\u", b"\\/")
"""Pre-filter: every pod with a claim, our label or a name that begins like a Neuron resource contains one of these."""
_VALID: Final = unchanged("valid")
_SHAPELESS: Final = object()
_SUBRESOURCE: Final = unchanged("subresource")
_OPERATION: Final = unchanged("operation")
_EXCLUDED: Final = unchanged("excluded-namespace")
_SAME_SPEC: Final = unchanged("spec-unchanged")
_NOT_NEURON: Final = unchanged("not-neuron")
_UNKNOWN_KIND: Final = unchanged("unknown-kind")
