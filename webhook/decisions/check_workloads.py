"""Checks the pods that a workload would create, when the workload is applied. Pure.

A refused pod of a Deployment appears only in the events of its ReplicaSet, where users seldom look. A warning at apply
time shows the same text at once.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Final

from neuron import names
from neuron.api.configs import UltraServerConfig
from neuron.check.claims import ClaimContext
from neuron.check.configs import decode_parameters
from neuron.findings import Finding, Severity, as_warning, quoted, warning
from webhook.decisions import modes, pods, queues
from webhook.decisions.bound_claims import check_bound
from webhook.decisions.check_pods import Claiming, KnownClaim, check_pod
from webhook.decisions.check_resources import misspelt_resources
from webhook.decisions.conversion_context import ConversionContext
from webhook.decisions.convert_pods import convert
from webhook.decisions.decision import Outcome
from webhook.decisions.modes import Mode
from webhook.decisions.ports import NamespaceFacts
from webhook.decisions.steering import NO_STEERING, Steering, combined
from webhook.decisions.template_findings import NO_TEMPLATES, KnownTemplates

_LWS: Final = "LeaderWorkerSet"


@dataclasses.dataclass(frozen=True, slots=True)
class TemplateContext:
    """Inputs of checks that all pod templates of a workload share.

    Attributes:
        facts: settings of the namespace.
        conversion: context of conversion.
        claims: context for checks of claims.
        templates: those that policies may name.
    """

    facts: NamespaceFacts
    conversion: ConversionContext
    claims: ClaimContext
    templates: KnownTemplates = NO_TEMPLATES


@dataclasses.dataclass(frozen=True, slots=True)
class TemplateCheck:
    """What is found about the pods of one pod template.

    Attributes:
        findings: with paths in the workload. An error means that pods would be refused.
        claimed_class: as in the decision about the pods.
    """

    findings: list[Finding]
    claimed_class: str


def check_template(
    path: str,
    template: pods.Pod,
    known: Mapping[str, KnownClaim],
    context: TemplateContext,
    steering: Steering = NO_STEERING,
) -> TemplateCheck:
    """Check the pods of one pod template.

    Args:
        path: field path of the template, e.g. `spec.template`; empty for a Pod.
        template: its view.
        known: what is known of its claims, by name of the entry.
        context: namespace and contexts.
        steering: settings of the policies that match its pods.
    """
    own_claims = [name for name, claim in known.items() if claim.judgement is not None and claim.judgement.leaves]
    decision = convert(template, context.facts, context.conversion, own_claims, steering)
    findings = [*decision.errors, *decision.warnings]
    shadowed = decision.shadowed is not None
    for found in (context.templates.find(need, context.claims) for need in decision.needs):
        findings += [] if found is None else [as_warning(found) if shadowed else found]
    if decision.outcome is Outcome.SHADOWED and decision.shadowed is not Outcome.DENIED:
        findings = [finding for finding in findings if finding.code != "NEU208"]
    if steering.binds_claims:
        claiming = Claiming.of(template)
        findings += check_bound(claiming, known, steering, context.claims, context.conversion, known_only=True)
    both_ways = any(finding.code == "NEU206" for finding in findings)
    findings += [
        finding for finding in check_pod(template, known, context.claims) if finding.code != "NEU704" or not both_ways
    ]
    findings += misspelt_resources(template, context.conversion.extended_resources)
    return TemplateCheck([under(path, finding) for finding in findings], decision.claimed_class)


@dataclasses.dataclass(slots=True)
class QueueCheck:
    """Collects the pod templates of one workload whose pods its queues may not count.

    Attributes:
        group: API group of the workload.
        kind: its kind.
        data: the workload.
        rewritten: whether the templates themselves are converted, so that Kueue finds claims in them.
    """

    group: str
    kind: str
    data: Mapping[str, Any]
    rewritten: bool = False
    _templates: list[tuple[str, Mapping[str, Any]]] = dataclasses.field(default_factory=list)
    _class: str = ""

    def add(self, path: str, template: Mapping[str, Any], claimed_class: str) -> None:
        """Add a pod template. `claimed_class`: of the decision about its pods; without one it does not count."""
        if claimed_class:
            self._templates.append((path, template))
            self._class = self._class or claimed_class

    def findings(self) -> list[Finding]:
        """NEU232 for each system that stops counting."""
        if not self._templates:
            return []
        found = queues.queues_of_workload(self.group, self.kind, self.data, self._templates)
        by_template = not self.rewritten and queues.is_counted_by_template(self.group, self.kind)
        losing = queues.losing_count(found, by_template=by_template)
        return [queues.uncounted(each, self._class) for each in losing]


def under(prefix: str, finding: Finding) -> Finding:
    """The finding with its path in the workload. `prefix`: field path of the pod template."""
    if not prefix or finding.path.startswith("metadata.namespace"):
        return finding
    return dataclasses.replace(finding, path=f"{prefix}.{finding.path}" if finding.path else prefix)


def as_warnings(kind: str, findings: Iterable[Finding]) -> list[Finding]:
    """Findings about a workload's pods as warnings, with NEU701 before the errors of each container."""
    warnings = []
    announced = set()
    for finding in findings:
        if finding.severity is Severity.ERROR:
            where = finding.path.partition(".resources")[0]
            if where not in announced:
                announced.add(where)
                warnings.append(warning("NEU701", where, f"pods of this {kind} would be refused: {where}"))
        warnings.append(as_warning(finding))
    return warnings


def ultraserver_modes(
    template: pods.Pod,
    known: Mapping[str, KnownClaim],
    context: TemplateContext,
    steering: Steering = NO_STEERING,
) -> set[int]:
    """UltraServer modes that pods of a template get by annotation, if they are converted, or by their claims."""
    found = set()
    for claim in known.values():
        for config in claim.judgement.spec.configs if claim.judgement is not None else ():
            decoded = decode_parameters(config.parameters).config if config.driver == names.DRIVER else None
            if isinstance(decoded, UltraServerConfig):
                found.add(decoded.ultraserver_mode)
    annotated = modes.resolve(template.annotations, context.facts, Mode(context.conversion.options.mode))
    settings = combined(annotated, steering)
    converted = settings.mode not in (Mode.OFF, Mode.SHADOW) and template.concerns_us
    if settings.device_config.ultraserver_mode is not None and converted:
        found.add(settings.device_config.ultraserver_mode)
    return found


def check_size(kind: str, manifest: object, sizes: Iterable[int]) -> list[Finding]:
    """NEU710: a group of a LeaderWorkerSet must have one pod for each node of the UltraServer set."""
    if kind != _LWS:
        return []
    size = _size(manifest)
    for nodes in sorted(set(sizes)):
        if size != nodes:
            shown = quoted(size)
            message = f"groups have {shown} pods, and UltraServer mode {nodes} needs {nodes}, one for each node."
            fix = f"Set size to {nodes}" + (f", or the mode to {shown}." if size in (1, 2, 4) else ".")
            return [warning("NEU710", "spec.leaderWorkerTemplate.size", message, fix, shown)]
    return []


def _size(manifest: object) -> object:
    """`spec.leaderWorkerTemplate.size` of any type; 1 if it is not set."""
    value = manifest
    for field in ("spec", "leaderWorkerTemplate", "size"):
        value = value.get(field) if isinstance(value, Mapping) else None
    return value or 1
