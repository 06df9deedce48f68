"""Claims, templates and DeviceClasses: from what was read to every finding about it. Pure.

The steps, in order: form -> DeviceClass -> selectors -> what each request can match -> configs -> counts.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from neuron import check_configs, check_selectors, names
from neuron.check_attributes import check_attributes
from neuron.check_configs import Placed
from neuron.check_counts import CountRules, Leaf
from neuron.check_selectors import Judged, JudgedSelectors
from neuron.claim_reader import read_claim, read_class, shown
from neuron.claim_specs import ClaimSpec, ClassSpec, DeviceRequest, Selector
from neuron.configs import ConfigEntry, Source
from neuron.findings import Finding, Findings, Severity, as_warning, did_you_mean, warning
from neuron.instances import Catalogue
from neuron.selection import DeviceIndex, SelectorEngine

_OUR_DOMAINS: Final = (names.DRIVER, "resource.aws.com")
_FORM_ERRORS: Final = ("NEU507", "NEU508", "NEU530")
"""Faults of form that no later API version can make right, and what is too long to be judged by this one."""
_MOST_SELECTORS: Final = 1024
"""Selectors of one claim that are judged, those of all its requests together."""
_MOST_HINTS: Final = 16
"""DeviceClasses of one claim for which a known name is suggested: that costs up to some milliseconds each."""


@dataclasses.dataclass(frozen=True, slots=True)
class ClaimContext:
    """What claims are judged against; replaced as a whole when it changes.

    Attributes:
        catalogue: instance types, with what slices told of them.
        index: the devices that exist.
        engine: evaluates selectors.
        memory: what is known of selectors that were judged with `index`; None: each object begins anew.
        classes: DeviceClasses by name; those of a cluster, or of the files at hand.
        classes_known: whether a class that is not in `classes` does not exist.
        device_class: the class of the driver's chart; without being listed it is taken to select the driver.
        unconnected: whether a policy lets pods have devices that are not connected: a claim for them is then no error.
    """

    catalogue: Catalogue
    index: DeviceIndex
    engine: SelectorEngine
    classes: Mapping[str, ClassSpec] = dataclasses.field(default_factory=dict)
    classes_known: bool = False
    device_class: str = names.DEVICE_CLASS
    unconnected: bool = False
    memory: JudgedSelectors | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class ClaimJudgement:
    """What came of judging a claim.

    Attributes:
        spec: the claim.
        leaves: its requests for Neuron devices, with what they can match.
        findings: everything that was found, in the order of the steps.
    """

    spec: ClaimSpec
    leaves: tuple[Leaf, ...]
    findings: tuple[Finding, ...]


def validate(kind: str, api_version: str, spec: object, world: ClaimContext, *, accepted: bool) -> tuple[Finding, ...]:
    """Judge a ResourceClaim, ResourceClaimTemplate or DeviceClass.

    Args:
        kind: which of them.
        api_version: of the object.
        spec: its `spec`, JSON-like; `opaque.parameters` may be raw JSON as bytes.
        world: what is known outside it.
        accepted: whether an API server has taken it, and so knows better what form it may have.
    """
    return judge_read(read(kind, api_version, spec), world, accepted=accepted)


@dataclasses.dataclass(frozen=True, slots=True)
class ReadSpec:
    """A spec that was read.

    Attributes:
        spec: what it says.
        form: what is wrong with its form.
    """

    spec: ClaimSpec | ClassSpec
    form: tuple[Finding, ...]

    def expressions(self, classes: Mapping[str, ClassSpec]) -> Iterator[str]:
        """Every selector by which it is judged, those of its DeviceClasses included."""
        if isinstance(self.spec, ClassSpec):
            yield from (each.expression for each in self.spec.selectors)
            return
        for devices in (each for request in self.spec.requests for each in request.alternatives):
            yield from (each.expression for each in devices.selectors)
            device_class = classes.get(devices.device_class)
            yield from (each.expression for each in device_class.selectors) if device_class is not None else ()


def read(kind: str, api_version: str, spec: object) -> ReadSpec:
    """Read a spec; arguments as of `validate`."""
    found, form = read_class(api_version, spec) if kind == "DeviceClass" else read_claim(kind, api_version, spec)
    return ReadSpec(found, form)


def judge_read(what: ReadSpec, world: ClaimContext, *, accepted: bool) -> tuple[Finding, ...]:
    """Judge a spec that was read; arguments as of `validate`."""
    if isinstance(what.spec, ClassSpec):
        findings = judge_class(what.spec, world)
        ours = bool(findings)
    else:
        judgement = judge_claim(what.spec, world)
        findings = judgement.findings
        ours = bool(judgement.leaves or findings)
    if not accepted:
        return (*what.form, *findings)
    return (*_of_accepted(what.form), *findings) if ours else findings


def _of_accepted(form: Iterable[Finding]) -> Iterator[Finding]:
    """What is left of findings about the form of an object that an API server has taken.

    Where it allows what is unknown here, it is newer: that must refuse nothing. Unknown fields are told only where
    they look like misspellings.
    """
    for finding in form:
        if finding.code in _FORM_ERRORS:
            yield finding
        elif finding.code != "NEU501" or "Did you mean" in finding.message:
            yield as_warning(finding)


def judge_class(device_class: ClassSpec, world: ClaimContext) -> tuple[Finding, ...]:
    """Judge a DeviceClass that has been read; only as far as it is about Neuron devices."""
    placed, found = check_configs.decode(device_class.configs, Source.FROM_CLASS)
    findings = Findings(found)
    request = DeviceRequest("spec", "", "", device_class.selectors)
    matcher = _Matcher(world)
    if placed or found or matcher.mentions_us(request):
        mask = matcher.visit(request, world.index.everything)
        findings.add(matcher.findings)
        found = check_configs.check_hardware(request, placed, (), mask, world.index, world.catalogue)
        findings.add(finding for finding in found if matcher.certain or _holds_for_fewer(finding))
    return tuple(findings)


def judge_claim(claim: ClaimSpec, world: ClaimContext) -> ClaimJudgement:
    """Judge a claim that has been read."""
    placed, found = check_configs.decode(claim.configs, Source.FROM_CLAIM)
    findings = Findings(found)
    matcher = _Matcher(world)
    leaves, foreign = [], []
    for request in claim.requests:
        for devices in request.alternatives:
            mask = matcher.match(devices)
            if mask is None:
                foreign.append(devices.reference)
            else:
                leaves.append(Leaf(devices, request.name, mask))
    findings.add(matcher.findings)
    findings.add(check_configs.check_conflicts(claim, placed))
    findings.add(check_configs.check_targets(claim, placed, foreign))
    findings.add(check_configs.check_other_drivers(claim, only_ours=bool(leaves) and not foreign))
    rules = CountRules(claim, leaves, world.index, world.catalogue, unconnected=world.unconnected)
    found = [finding for leaf in leaves for finding in _check_hardware(leaf, placed, matcher, world)]
    found += check_attributes(claim, leaves, world.index)
    found += rules.findings()
    findings.add(finding for finding in found if matcher.certain or _holds_for_fewer(finding))
    return ClaimJudgement(claim, tuple(rules.leaves), tuple(findings))


def _holds_for_fewer(finding: Finding) -> bool:
    """Whether a finding about what a request can match stays true if it matches less."""
    return finding.severity is Severity.ERROR and finding.code != "NEU414"


def _check_hardware(leaf: Leaf, placed: Sequence[Placed], matcher: "_Matcher", world: ClaimContext) -> list[Finding]:
    entries = matcher.class_entries(leaf.devices.device_class)
    return check_configs.check_hardware(leaf.devices, placed, entries, leaf.mask, world.index, world.catalogue)


def _too_many_selectors(path: str) -> Finding:
    message = f"selectors were not checked: the claim has more than {_MOST_SELECTORS} of them."
    return warning("NEU603", f"{path}.selectors", message, "Kubernetes judges them alone.")


class _Matcher:
    """What the requests of one claim can match, and what is wrong with their selectors."""

    def __init__(self, world: ClaimContext) -> None:
        self._world = world
        self._left = _MOST_SELECTORS
        self._judged: dict[str, Judged] = {}
        self._admitted: dict[str, int] = {}
        self._ours: dict[str, bool] = {}
        self._entries: dict[str, Sequence[ConfigEntry]] = {}
        self._misspelt: dict[str, bool] = {}
        self._hints: dict[str, str] = {}
        self.findings = Findings()
        self.certain = True
        """Whether all selectors could be judged; if not, requests may match less than is thought."""

    def _judge(self, selector: Selector) -> Judged:
        """The selector, judged: each expression once, in however many requests it stands."""
        known = self._judged.get(selector.expression)
        if known is None:
            world = self._world
            known = check_selectors.judge(selector, world.engine, world.index, world.memory)
            self._judged[selector.expression] = known
        return known

    def mentions_us(self, request: DeviceRequest) -> bool:
        """Whether selectors are about Neuron devices, going by the attributes that they read."""
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
        """Shapes that a DeviceClass lets through. A selector of it that cannot be judged may let everything through."""
        if name not in self._admitted:
            admitted = self._world.index.everything
            for each in map(self._judge, device_class.selectors):
                admitted &= each.match.matched if each.match is not None else admitted
            self._admitted[name] = admitted
        return self._admitted[name]

    def match(self, devices: DeviceRequest) -> int | None:
        """Shapes that a request can match; None if it does not ask for Neuron devices."""
        world = self._world
        device_class = world.classes.get(devices.device_class)
        self._check_class(devices, exists=device_class is not None)
        if device_class is None:
            ours = devices.device_class == world.device_class or self.mentions_us(devices)
            if not ours and not self._is_misspelt(devices.device_class):
                return None
            return self.visit(devices, world.index.everything)
        admitted = self._admitted_by(devices.device_class, device_class)
        if not admitted or (not device_class.selectors and not self.mentions_us(devices)):
            return None
        return self.visit(devices, admitted)

    def visit(self, devices: DeviceRequest, admitted: int) -> int:
        """Apply a request's own selectors to what its class admits.

        One that is wrong narrows nothing: what is too much for all devices is too much for any of them.
        """
        index = self._world.index
        alive, said = admitted, len(self.findings)
        selectors = devices.selectors[: max(0, self._left)]
        self._left -= len(selectors)
        if len(selectors) < len(devices.selectors):
            self.certain = False
            self.findings.add([_too_many_selectors(devices.path)])
        judged = [self._judge(each) for each in selectors]
        for selector, each in zip(selectors, judged, strict=True):
            self.findings.add_at(each.findings, selector.path)
            if each.match is None or any(finding.severity is Severity.ERROR for finding in each.findings):
                self.certain = False
                continue
            self.findings.add_at(check_selectors.check_failures(each, alive, index), selector.path)
            alive &= each.match.matched
        if judged and len(self.findings) == said:
            path = f"{devices.path}.selectors"
            self.findings.add(check_selectors.check_nothing_matches(judged, path, alive, index))
        return alive

    def class_entries(self, name: str) -> Sequence[ConfigEntry]:
        """The configs of a DeviceClass, as far as they can be read."""
        entries = self._entries.get(name)
        if entries is None:
            device_class = self._world.classes.get(name)
            configs = device_class.configs if device_class is not None else ()
            placed, _ = check_configs.decode(configs, Source.FROM_CLASS)
            entries = self._entries[name] = [each.entry for each in placed]
        return entries

    def _is_misspelt(self, name: str) -> bool:
        """Whether a DeviceClass looks like a misspelling of ours."""
        if name not in self._misspelt:
            self._misspelt[name] = bool(did_you_mean(name, [self._world.device_class]))
        return self._misspelt[name]

    def _check_class(self, devices: DeviceRequest, *, exists: bool) -> None:
        """NEU513: a DeviceClass that does not exist, or is likely a misspelling."""
        name, world = devices.device_class, self._world
        if exists or not name or (name == world.device_class and not world.classes_known):
            return
        if name not in self._hints and len(self._hints) < _MOST_HINTS:
            self._hints[name] = did_you_mean(name, sorted({world.device_class, *world.classes} - {name}))
        hint = self._hints.get(name, "")
        if not hint and not world.classes_known:
            return
        where = "does not exist" if world.classes_known else "is not known here"
        message = f"DeviceClass {shown(name)[:40]} {where}.{hint[:60]}"
        fix = "Pods wait until it exists."
        self.findings.add([warning("NEU513", f"{devices.path}.deviceClassName", message, fix, name)])
