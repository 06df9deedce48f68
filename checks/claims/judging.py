"""Checks claims, claim templates and DeviceClasses: a spec that was read to all findings about it. Pure.

The steps, in order: form -> DeviceClass -> selectors -> devices that each request can match -> configs -> counts.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Struct, structs

from checks.claims import configs as check_configs
from checks.claims import selectors as check_selectors
from checks.claims.capacity import CapacityRules, spare_alternatives
from checks.claims.counts import CountRules
from checks.claims.device_index import DeviceIndex, SelectorEngine
from checks.claims.scheduling import check_attributes, check_scheduling
from checks.claims.selectors import ExpressionMemory, Judged
from neuron import names
from neuron.api.claim_reader import VERSIONS, read_claim, read_class, value_text
from neuron.api.claim_specs import GROUP, ClaimSpec, ClassSpec, DeviceRequest, Leaf, Selector, entries_of
from neuron.api.configs import ConfigEntry, ConfigSource
from neuron.findings import Finding, Findings, Severity, Suggestions, as_warning, did_you_mean, warning
from neuron.hardware.instances import Catalogue

_OUR_DOMAINS: Final = (names.DRIVER, "resource.aws.com")
_FORM_ERRORS: Final = ("NEU507", "NEU508", "NEU530")
"""Errors of form that are errors in any API version, and lists that are too long to be checked."""
_MOST_SELECTORS: Final = 1024
"""Selectors of all requests of one claim that are evaluated."""


class ClaimContext(Struct, frozen=True):
    """Facts by which claims are checked. Replaced when they change.

    Attributes:
        catalogue: instance types, completed by ResourceSlices.
        classes: DeviceClasses by name, of a cluster or of files.
        classes_known: whether a class that is not in `classes` does not exist.
        device_class: the class of the driver's chart. If it is not in `classes`, it is assumed to select the driver.
        unconnected: whether a policy allows devices that are not connected, so that a claim for them is not an error.
        network_classes: DeviceClasses of EFA interfaces: that of AWS's network driver, and those that policies name.
        memory: cache of selectors that were evaluated with `index`; None: no cache.
    """

    catalogue: Catalogue
    index: DeviceIndex
    engine: SelectorEngine
    classes: Mapping[str, ClassSpec] = msgspec.field(default_factory=dict)
    classes_known: bool = False
    device_class: str = names.DEVICE_CLASS
    unconnected: bool = False
    network_classes: frozenset[str] = frozenset({names.EFA_DEVICE_CLASS})
    memory: ExpressionMemory[Judged] | None = None


def for_one_object(context: ClaimContext, clock: Callable[[], float] | None = None) -> ClaimContext:
    """The same facts with a new engine, whose time limit is for one object and by `clock`; None: wall-clock time."""
    return structs.replace(context, engine=context.engine.for_one_object(clock))


class ClaimJudgement(Struct, frozen=True):
    """A checked claim.

    Attributes:
        leaves: its requests for Neuron devices, with the shapes that they can match.
        findings: all findings, in the order of the steps.
    """

    spec: ClaimSpec
    leaves: tuple[Leaf, ...]
    findings: tuple[Finding, ...]


_REMOVED: Final = tuple(f"{GROUP}/v1alpha{number}" for number in (1, 2, 3))
"""Versions of Kubernetes 1.26 to 1.31."""


def validate(
    kind: str, api_version: str, spec: object, context: ClaimContext, *, accepted: bool
) -> tuple[Finding, ...]:
    """Check a ResourceClaim, ResourceClaimTemplate or DeviceClass.

    Args:
        spec: its `spec`, JSON-like; `opaque.parameters` may be raw JSON as bytes.
        accepted: whether an API server has accepted its form.
    """
    if api_version in _REMOVED:
        message = f"apiVersion {api_version} has other fields, and Kubernetes has removed it."
        return (Finding("NEU503", "apiVersion", message, f"Write the object for {VERSIONS[0]}.", api_version),)
    return judge_read(read(kind, api_version, spec), context, accepted=accepted)


class ReadSpec(Struct, frozen=True):
    """A spec that was read."""

    spec: ClaimSpec | ClassSpec
    form: tuple[Finding, ...]

    def expressions(self, classes: Mapping[str, ClassSpec]) -> Iterator[str]:
        """All selectors that the check evaluates, including those of its DeviceClasses."""
        if isinstance(self.spec, ClassSpec):
            yield from (each.expression for each in self.spec.selectors)
            return
        for devices in (each for request in self.spec.requests for each in request.alternatives):
            yield from (each.expression for each in devices.selectors)
            device_class = classes.get(devices.device_class)
            yield from (each.expression for each in device_class.selectors) if device_class is not None else ()


def read(kind: str, api_version: str, spec: object) -> ReadSpec:
    """Read a spec; arguments as for `validate`."""
    found, form = read_class(api_version, spec) if kind == "DeviceClass" else read_claim(kind, api_version, spec)
    return ReadSpec(found, form)


def judge_read(what: ReadSpec, context: ClaimContext, *, accepted: bool) -> tuple[Finding, ...]:
    """Check a spec that was read; arguments as for `validate`."""
    if isinstance(what.spec, ClassSpec):
        findings = judge_class(what.spec, context)
        ours = bool(findings)
    else:
        judgement = judge_claim(what.spec, context)
        findings = judgement.findings
        ours = bool(judgement.leaves or findings)
    if not accepted:
        return (*what.form, *findings)
    return (*_of_accepted(what.form), *findings) if ours else findings


def _of_accepted(form: Iterable[Finding]) -> Iterator[Finding]:
    """Findings about the form of an object that an API server has accepted.

    A newer API server allows fields and values that are unknown here, so most errors become warnings. Unknown fields
    are reported only if they look like misspellings.
    """
    for finding in form:
        if finding.code in _FORM_ERRORS:
            yield finding
        elif finding.code != "NEU501" or finding.misspelt:
            yield as_warning(finding)


def judge_class(device_class: ClassSpec, context: ClaimContext) -> tuple[Finding, ...]:
    """Check a DeviceClass that was read. A class that is not for Neuron devices has no findings."""
    placed, found = check_configs.decode(device_class.configs, ConfigSource.FROM_CLASS)
    findings = Findings(found)
    request = DeviceRequest("spec", "", "", device_class.selectors)
    matcher = _Matcher(context)
    if placed or found or matcher.mentions_us(request):
        mask = matcher.visit(request, context.index.everything)
        matcher.check_published([request], [mask])
        findings.add(matcher.findings)
        found = check_configs.check_hardware(request, placed, (), mask, context.index, context.catalogue)
        findings.add(finding for finding in found if matcher.certain or _holds_for_fewer(finding))
    return tuple(findings)


def judge_claim(claim: ClaimSpec, context: ClaimContext) -> ClaimJudgement:
    """Check a claim that was read."""
    placed, found = check_configs.decode(claim.configs, ConfigSource.FROM_CLAIM)
    findings = Findings(found)
    matcher = _Matcher(context)
    leaves, foreign = [], []
    for request in claim.requests:
        masks = [matcher.match(devices) for devices in request.alternatives]
        for devices, mask in zip(request.alternatives, masks, strict=True):
            if mask is None:
                foreign.append(devices.reference)
            else:
                leaves.append(Leaf(devices, request.name, mask))
        matcher.check_published(request.alternatives, masks)
    findings.add(matcher.findings)
    findings.add(check_configs.check_conflicts(claim, placed))
    findings.add(check_configs.check_targets(claim, placed, foreign))
    findings.add(check_admin_access(leaves))
    findings.add(check_configs.check_other_drivers(claim, only_ours=bool(leaves) and not foreign))
    rules = CountRules(
        claim,
        leaves,
        context.index,
        context.catalogue,
        unconnected=context.unconnected,
        network_classes=context.network_classes,
    )
    found = []
    for leaf in leaves:
        of_class = matcher.class_entries(leaf.devices.device_class)
        found += check_configs.check_hardware(
            leaf.devices, placed, of_class, leaf.mask, context.index, context.catalogue
        )
    found += check_attributes(claim, leaves, context.index)
    shares = CapacityRules(context.index, context.catalogue, [each.entry for each in placed])
    entries = [matcher.class_entries(leaf.devices.device_class) for leaf in leaves]
    found += spare_alternatives((leaf, shares.check(leaf, each)) for leaf, each in zip(leaves, entries, strict=True))
    found += rules.findings()
    if not any(each.severity is Severity.ERROR for each in found):
        found += check_scheduling(claim, rules.leaves, context.index, context.catalogue)
    findings.add(finding for finding in found if matcher.certain or _holds_for_fewer(finding))
    return ClaimJudgement(claim, tuple(rules.leaves), tuple(findings))


def _holds_for_fewer(finding: Finding) -> bool:
    """Whether a finding about a request stays true if the request matches fewer devices."""
    return finding.severity is Severity.ERROR and finding.code != "NEU414"


class _Matcher:
    """Finds the shapes that the requests of one claim can match. Collects findings about selectors."""

    def __init__(self, context: ClaimContext) -> None:
        self._context = context
        self._left = _MOST_SELECTORS
        self._judged: dict[str, Judged] = {}
        self._admitted: dict[str, int] = {}
        self._ours: dict[str, bool] = {}
        self._entries: dict[str, Sequence[ConfigEntry]] = {}
        self._misspelt: dict[str, bool] = {}
        self._hints: dict[str, str] = {}
        self._suggestions = Suggestions()
        self._undisputed: set[str] = set()
        """Paths of requests whose selectors have no finding, and match known devices."""
        self.findings = Findings()
        self.certain = True
        """Whether all selectors could be evaluated. If not, requests may match fewer shapes than returned."""

    def _judge(self, selector: Selector) -> Judged:
        """Evaluate a selector. Each expression of the claim is evaluated once."""
        known = self._judged.get(selector.expression)
        if known is None:
            context = self._context
            known = check_selectors.judge(selector, context.engine, context.index, context.memory)
            self._judged[selector.expression] = known
        return known

    def mentions_us(self, request: DeviceRequest) -> bool:
        """Whether selectors read attributes of Neuron devices."""
        return any(self._is_ours(selector) for selector in request.selectors)

    def _is_ours(self, selector: Selector) -> bool:
        expression = selector.expression
        if expression not in self._ours:
            compiled = self._judge(selector).compiled if len(self._ours) < _MOST_SELECTORS else None
            if compiled is None:
                self._ours[expression] = any(domain in expression for domain in _OUR_DOMAINS)
            else:
                domains = {lookup.attribute.rpartition("/")[0] for lookup in compiled.lookups}
                self._ours[expression] = bool(domains.intersection(_OUR_DOMAINS)) or names.DRIVER in compiled.drivers
        return self._ours[expression]

    def _admitted_by(self, name: str, device_class: ClassSpec) -> int:
        """Shapes that a DeviceClass admits. A selector that cannot be evaluated admits all shapes."""
        if name not in self._admitted:
            admitted = self._context.index.everything
            for each in map(self._judge, device_class.selectors):
                admitted &= each.match.matched if each.match is not None else admitted
            self._admitted[name] = admitted
        return self._admitted[name]

    def match(self, devices: DeviceRequest) -> int | None:
        """Shapes that a request can match; None if it is not for Neuron devices."""
        context = self._context
        device_class = context.classes.get(devices.device_class)
        self._check_class(devices, exists=device_class is not None)
        if device_class is None:
            ours = devices.device_class == context.device_class or self.mentions_us(devices)
            if not ours and not self._is_misspelt(devices.device_class):
                return None
            return self.visit(devices, context.index.everything)
        admitted = self._admitted_by(devices.device_class, device_class)
        if not admitted or (not device_class.selectors and not self.mentions_us(devices)):
            return None
        return self.visit(devices, admitted)

    def visit(self, devices: DeviceRequest, admitted: int) -> int:
        """Apply a request's own selectors to the shapes that its class admits.

        A selector with errors excludes no shape: a count that is too large for all devices stays an error.
        """
        index = self._context.index
        alive, before = admitted, len(self.findings)
        selectors = devices.selectors[: max(0, self._left)]
        self._left -= len(selectors)
        if len(selectors) < len(devices.selectors):
            self.certain = False
            message = f"selectors were not checked: the claim has more than {_MOST_SELECTORS} of them."
            fix = "Only Kubernetes evaluates them."
            self.findings.add([warning("NEU603", f"{devices.path}.selectors", message, fix)])
        judged = [self._judge(each) for each in selectors]
        for selector, each in zip(selectors, judged, strict=True):
            if each.match is not None and not each.match.failing and not each.findings:
                alive &= each.match.matched
                continue
            self.findings.add_at(each.findings, selector.path)
            if each.match is None or any(finding.severity is Severity.ERROR for finding in each.findings):
                self.certain = False
                continue
            self.findings.add_at(check_selectors.check_failures(each, alive, index), selector.path)
            alive &= each.match.matched
        if judged and len(self.findings) == before:
            if alive:
                self._undisputed.add(devices.path)
            else:
                path = f"{devices.path}.selectors"
                self.findings.add([check_selectors.check_nothing_matches(judged, path, index)])
        return alive

    def check_published(self, alternatives: Sequence[DeviceRequest], masks: Sequence[int | None]) -> None:
        """NEU612: no published device matches. The alternatives of a request are judged together: one is enough."""
        index = self._context.index
        absent = [each.path for each in alternatives if each.path in self._undisputed]
        if not absent or not index.published or any(mask is None or mask & index.published for mask in masks):
            return
        several = len(alternatives) > 1
        path = absent[0].rpartition("[")[0] if several else f"{absent[0]}.selectors"
        self.findings.add([check_selectors.nothing_published(path, index, alternatives=several)])

    def class_entries(self, name: str) -> Sequence[ConfigEntry]:
        """The readable configs of a DeviceClass."""
        entries = self._entries.get(name)
        if entries is None:
            device_class = self._context.classes.get(name)
            configs = device_class.configs if device_class is not None else ()
            entries = self._entries[name] = entries_of(configs, ConfigSource.FROM_CLASS)
        return entries

    def _is_misspelt(self, name: str) -> bool:
        """Whether the name looks like a misspelling of our DeviceClass."""
        if name not in self._misspelt:
            self._misspelt[name] = bool(did_you_mean(name, [self._context.device_class]))
        return self._misspelt[name]

    def _check_class(self, devices: DeviceRequest, *, exists: bool) -> None:
        """NEU513: the DeviceClass does not exist, or is likely a misspelling."""
        name, context = devices.device_class, self._context
        if exists or not name or (name == context.device_class and not context.classes_known):
            return
        if name not in self._hints:
            known = sorted({context.device_class, *context.classes} - {name})
            self._hints[name] = self._suggestions.did_you_mean(name, known)
        hint = self._hints[name]
        if not hint and not context.classes_known:
            return
        where = "does not exist" if context.classes_known else "is not known here"
        message = f"DeviceClass {value_text(name)[:40]} {where}.{hint[:60]}"
        fix = "Pods wait until it exists."
        self.findings.add([warning("NEU513", f"{devices.path}.deviceClassName", message, fix, name)])


# --- adminAccess ------------------------------------------------------------------------------------------------------


def check_admin_access(leaves: Sequence[Leaf]) -> Iterator[Finding]:
    """NEU544. Alternatives have no such field: the API server drops it."""
    for leaf in leaves:
        if leaf.devices.admin_access and "/" not in leaf.devices.reference:
            message = "adminAccess gives its containers Neuron devices that other claims hold."
            fix = (
                "Keep it to monitoring, in a namespace of the chart's adminAccess.namespaces: elsewhere the driver"
                " refuses it."
            )
            yield warning("NEU544", f"{leaf.devices.path}.adminAccess", message, fix, "true")
