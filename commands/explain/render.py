"""Prints explanations: one screen of text for people, JSON for programs."""

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

import orjson

from commands.explain.admission_preview import AdmissionPreview, ClaimUse
from commands.explain.explanation import Block, Diagnosis, Explanation, NodeGroup, NodeVerdict, PodState, grouped
from commands.present import finding_fields
from conversion.patches.decision import Decision, Outcome
from neuron.api.claim_specs import ClaimSpec, Constraint, DeviceRequest
from neuron.findings import Finding, Severity, few, short
from neuron.names import ATTRIBUTE_DEVICE_ID, DRIVER
from runtime.console import BOLD, GREEN, RED, YELLOW, Row, Style, json_text, printable
from runtime.text import cited, counted, named

_LABEL: Final = 10
_MOST_NODES: Final = 6
"""Nodes that can take the pod, and nodes of one reason, that text names."""
_MOST_OPERATIONS: Final = 8
_MOST_SUBJECTS: Final = 20
"""Pods that a finding about several of them names."""
_LONGEST_VALUE: Final = 100
_STATES: Final = {PodState.WELL: GREEN, PodState.WAITS: YELLOW, PodState.STUCK: RED}
_RESULTS: Final = {
    Outcome.CONVERTED: "converted",
    Outcome.RESTORED: "restored: the claim of its conversion is put back",
    Outcome.ENRICHED: "enriched",
    Outcome.HINTED: "gets scheduling hints",
    Outcome.MUTATED: "is changed by policies",
    Outcome.SHADOWED: "not changed, because of shadow mode",
    Outcome.UNCHANGED: "not changed",
    Outcome.DENIED: "refused",
}
_REASONS: Final = {
    "not-neuron": "there is nothing to convert",
    "excluded-namespace": "its namespace is excluded",
    "mode-off-by-pod": "its mode is off",
    "mode-off-by-namespace": "its mode is off",
    "mode-off-by-policy": "its mode is off",
    "mode-off-by-flag": "its mode is off",
    "mirror-pod": "it is the mirror pod of a static pod",
    "node-name": "nodeName is set, so no scheduler would allocate its claim",
    "already-converted": "it is converted already",
    "served-by-extended-resource-name": "a DeviceClass with extendedResourceName serves it as well",
}


def as_text(explanations: Iterable[Explanation], style: Style) -> Iterator[str]:
    """Text for people, page by page. A finding about several pods is given once, after all pods.

    All explanations are read before the first page. Of each, only its text and its findings are kept.
    """
    about: dict[_Fact, tuple[Finding, list[str]]] = {}
    pages = [_page(each, about, style) for each in explanations]
    shared = {fact: (finding, subjects) for fact, (finding, subjects) in about.items() if len(subjects) > 1}
    before = ""
    for page in pages:
        yield before + "".join([each if isinstance(each, str) else each.text(shared, style) for each in page])
        before = "\n"
    if shared:
        rows: list[Row] = []
        for finding, subjects in shared.values():
            rows += (_finding(finding), Row("about", few(subjects, _MOST_SUBJECTS)))
        head = style.painted("Findings about several pods", BOLD)
        yield f"\n{head}\n{style.labelled(rows, _LABEL)}"


_Fact: TypeAlias = tuple[str, str, str]
"""Code, message and fix of a finding."""


def _fact(finding: Finding) -> _Fact:
    return finding.code, finding.message, finding.fix


def _shown(preview: AdmissionPreview) -> Iterator[Finding]:
    """The findings about a pod itself that its page shows."""
    if not (preview.stored and preview.converted_before):
        yield from (finding for finding in preview.findings if finding.code != "NEU208")


class _Gap(NamedTuple):
    """Where a page has a finding, whose text depends on other pods. `label`: of the row before it."""

    finding: Finding
    label: str

    def text(self, shared: Collection[_Fact], style: Style) -> str:
        return style.labelled([_finding(self.finding, shared)], _LABEL, self.label)


def _page(
    explanation: Explanation, about: dict[_Fact, tuple[Finding, list[str]]], style: Style
) -> tuple[str | _Gap, ...]:
    """The texts of a page and its findings, in their order. `about`: the findings about all pods, with the pods."""
    preview = explanation.preview
    place = f" ({preview.place})" if preview.place else ""
    head = style.painted(printable(preview.subject, style.encoding), BOLD) + printable(place, style.encoding)
    page: list[str | _Gap] = [f"{head}\n"]
    rows: list[Row] = []
    label = ""
    for each in _rows(explanation):
        if isinstance(each, Row):
            rows.append(each)
            continue
        if rows:
            page.append(style.labelled(rows, _LABEL, label))
            label, rows = rows[-1].label, []
        page.append(_Gap(each, label))
        label = str(each.severity)
    page.append(style.labelled(rows, _LABEL, label))
    own = (*_shown(preview), *(finding for claim in preview.claims for finding in claim.findings))
    for fact, finding in {_fact(each): each for each in own}.items():
        about.setdefault(fact, (finding, []))[1].append(preview.subject)
    return tuple(page)


def _rows(explanation: Explanation) -> Iterator[Row | Finding]:
    preview = explanation.preview
    if (diagnosis := explanation.diagnosis) is not None:
        yield Row("state", diagnosis.text, f"{diagnosis.state}:", _STATES[diagnosis.state])
        if diagnosis.fix:
            yield Row("do", diagnosis.fix)
        if diagnosis.evidence:
            yield Row("because", str(diagnosis.evidence))
    nothing = () if preview.claims else ("no Neuron resource of the device plugin",)
    yield from (Row("asks", text) for text in preview.asks or nothing)
    if preview.asks:
        yield Row("mode", f"{preview.mode}: {preview.decided_by}")
    for hit in preview.hits:
        yield Row("policies", f"{hit.kind} {named(hit.policy)} ({hit.place}) {hit.effect}", *_mark(denies=hit.denies))
        yield from (Row("policies", f"  its message: {cited(message)}") for message in hit.messages)
    yield _result(preview)
    yield from _claims(preview)
    if not preview.stored:
        yield from _patch(preview.decision)
    for effect in preview.quotas:
        yield Row("quota", str(effect), *_mark(denies=effect.exceeded))
    yield from _shown(preview)
    if explanation.nodes is not None:
        yield from _nodes(explanation.nodes)
    yield from (Row("note", note) for note in explanation.notes)


def _mark(*, denies: bool) -> tuple[str, int]:
    return ("x", RED) if denies else ("", 0)


def _result(preview: AdmissionPreview) -> Row:
    if preview.stored and preview.converted_before:
        return Row("result", "when it was created", "converted", GREEN)
    decision = preview.decision
    text, colour = _RESULTS[decision.outcome], GREEN
    reason = _REASONS.get(decision.reason, "") if decision.outcome is Outcome.UNCHANGED else ""
    if preview.refused:
        text, colour = "refused", RED
    elif preview.unknown_kind:
        would = {Outcome.DENIED: "refused", Outcome.CONVERTED: "converted"}.get(decision.outcome, text)
        text, reason, colour = "unknown kind", f"if its pods are as they look, they are {would} when created", YELLOW
    elif decision.outcome is Outcome.SHADOWED:
        would = "refused" if decision.shadowed is Outcome.DENIED else "converted"
        reason, colour = f"in mode convert it would be {would}", YELLOW
    return Row("now" if preview.stored else "result", reason, f"{text}:" if reason else text, colour)


def _claims(preview: AdmissionPreview) -> Iterator[Row | Finding]:
    for claim in preview.claims:
        made = "generated template" if claim.generated else "template" if "Template" in claim.kind else "claim"
        by_group = f", shared by the pods of PodGroup {named(claim.shared_by)}" if claim.shared_by else ""
        yield Row("claim", f"{named(claim.name)}, {made} {named(claim.object)}{by_group}")
        if not claim.known:
            yield Row("claim", f"  its requests are not known: there is no {claim.kind} of this name")
        elif claim.spec is not None:
            yield from (Row("claim", f"  {line}") for line in claim_lines(claim.spec))
        yield from claim.findings


def _patch(decision: Decision) -> Iterator[Row]:
    for operation in decision.patch[:_MOST_OPERATIONS]:
        value = orjson.dumps(operation["value"]).decode() if "value" in operation else ""
        yield Row("patch", f"{operation['op']:<7} {operation['path']} {short(value, _LONGEST_VALUE)}".rstrip())
    if (more := len(decision.patch) - _MOST_OPERATIONS) > 0:
        yield Row("patch", f"and {more} more operations (-o json shows all)")


def _finding(finding: Finding, shared: Collection[_Fact] = ()) -> Row:
    colour = RED if finding.severity is Severity.ERROR else YELLOW
    text = "as for other pods: see the end" if _fact(finding) in shared else str(finding).partition(": ")[2]
    return Row(str(finding.severity), text, finding.code, colour)


# --- nodes ------------------------------------------------------------------------------------------------------


def _nodes(verdicts: Sequence[NodeVerdict]) -> Iterator[Row]:
    fitting = [each for each in verdicts if each.fits]
    neuron = [each for each in verdicts if each.block is not Block.NOT_NEURON]
    of = counted(len(neuron), "Neuron node")
    yield Row("nodes", f"of {of} could take it now", str(len(fitting)), GREEN if fitting else RED)
    for each in fitting[:_MOST_NODES]:
        devices = ", ".join(each.texts)
        yield Row(
            "nodes", f"{named(each.node)} ({named(each.instance_type)}){f': {devices}' if devices else ''}", "+", GREEN
        )
    if len(fitting) > _MOST_NODES:
        yield Row("nodes", f"and {len(fitting) - _MOST_NODES} more", "+", GREEN)
    for group in grouped(neuron):
        yield Row("nodes", _group(group), "-", RED)


def _group(group: NodeGroup) -> str:
    found = group.nodes
    if len(found) == 1:
        return f"{named(found[0].node)}: {'; '.join(filter(None, (group.reason, found[0].detail)))}"
    names = ", ".join(named(each.node) for each in found[:_MOST_NODES])
    more = f" and {len(found) - _MOST_NODES} more" if len(found) > _MOST_NODES else ""
    details = [f"{named(each.node)}: {each.detail}" for each in found if each.detail]
    example = f" (for example {details[0]})" if details else ""
    return f"{len(found)} nodes: {group.reason}: {names}{more}{example}"


# --- JSON -------------------------------------------------------------------------------------------------------


def as_json(explanations: Iterable[Explanation]) -> Iterator[str]:
    """JSON for programs: a list with one object per pod."""
    before = "[\n"
    for each in explanations:
        # An item is indented as in the list.
        [_, *lines, _, _] = json_text([_json(each)]).split("\n")
        yield before + "\n".join(lines)
        before = ",\n"
    yield "[]\n" if before == "[\n" else "\n]\n"


def _json(explanation: Explanation) -> dict[str, object]:
    preview, decision = explanation.preview, explanation.preview.decision
    document: dict[str, object] = {
        "subject": preview.subject,
        "place": preview.place,
        "namespace": preview.namespace,
        "asks": preview.asks,
        "mode": {"value": str(preview.mode), "decidedBy": preview.decided_by},
        "result": {"outcome": str(decision.outcome), "reason": decision.reason, "refused": preview.refused},
        "policies": [dataclasses.asdict(hit) for hit in preview.hits],
        "findings": [finding_fields(each) for each in preview.findings],
        "stored": preview.stored,
        "patch": () if preview.stored else decision.patch,
        "templates": [] if preview.stored else [each.manifest(preview.namespace) for each in decision.templates],
        "claims": [_claim_json(claim) for claim in preview.claims],
        "quotas": [{**dataclasses.asdict(each), "exceeded": each.exceeded} for each in preview.quotas],
        "notes": explanation.notes,
    }
    if explanation.nodes is not None:
        document["nodes"] = [_node_json(each) for each in explanation.nodes]
    if explanation.diagnosis is not None:
        document["diagnosis"] = _diagnosis_json(explanation.diagnosis)
    return document


def _diagnosis_json(diagnosis: Diagnosis) -> dict[str, object]:
    """`evidence` is one text with source and quotation marks; `quoted` has both parts for programs."""
    quote = diagnosis.evidence
    return {
        "case": diagnosis.case,
        "state": str(diagnosis.state),
        "text": diagnosis.text,
        "fix": diagnosis.fix,
        "evidence": str(quote or ""),
        "quoted": None if quote is None else {"source": quote.source, "text": quote.text},
    }


def _claim_json(claim: ClaimUse) -> dict[str, object]:
    return {
        "name": claim.name,
        "kind": claim.kind,
        "object": claim.object,
        "spec": claim.body,
        "generated": claim.generated,
        "sharedBy": claim.shared_by,
        "known": claim.known,
        "findings": [finding_fields(each) for each in claim.findings],
    }


def _node_json(verdict: NodeVerdict) -> dict[str, object]:
    devices = [
        {"request": each.request, "device": each.device, "consumed": dict(each.consumed)} for each in verdict.devices
    ]
    return {
        "node": verdict.node,
        "instanceType": verdict.instance_type,
        "fits": verdict.fits,
        "devices": devices,
        "block": None if verdict.block is None else str(verdict.block),
        "reason": verdict.reason,
        "detail": verdict.detail,
    }


# --- claims in words --------------------------------------------------------------------------------------------------


_MOST_WAYS: Final = 2


def claim_lines(spec: ClaimSpec) -> Iterator[str]:
    """One line for each request and each config."""
    for request in spec.requests:
        name = named(request.name)
        if not request.prioritised:
            for part in request.alternatives:
                yield f"{name}: {_part(part)}{_connected(_tied((request.name,), spec.constraints))}"
            continue
        # Alternatives of one request mostly differ only in where the devices are.
        texts: dict[str, list[str]] = {}
        for part in request.alternatives:
            ways = texts.setdefault(_part(part), [])
            if part.count > 1:
                by_ids = any(ATTRIBUTE_DEVICE_ID in each.expression for each in part.selectors)
                tied = () if by_ids else _tied((request.name, part.reference), spec.constraints)
                ways += [" and ".join(tied) or "by device id"]
        yield f"{name}: " + ", or ".join(f"{text}{_connected(ways)}" for text, ways in texts.items())
    for config in spec.configs:
        parameters = config.parameters
        if config.driver == DRIVER and isinstance(parameters, Mapping):
            values = {key: value for key, value in parameters.items() if key not in ("apiVersion", "kind")}
            covered = dict.fromkeys(name.partition("/")[0] for name in config.requests)
            some = any(covered and request.name not in covered for request in spec.requests)
            of = f" of {', '.join(map(named, covered))}" if some else ""
            yield f"config{of}: {named(parameters.get('kind'))} {orjson.dumps(values).decode()}"


def _part(part: DeviceRequest) -> str:
    devices = "all devices" if part.everything else counted(part.count, "device")
    share = "".join(f", {named(value)} {named(name)} of each" for name, value in part.capacity)
    admin = ", with adminAccess" if part.admin_access else ""
    return f"{devices} of {named(part.device_class)}{share}{admin}"


def _connected(ways: Sequence[str]) -> str:
    """How devices are kept together, in the order of the alternatives."""
    if not ways:
        return ""
    rest = len(ways) - _MOST_WAYS
    more = f" or {counted(rest, 'more way')}" if rest > 0 else ""
    return f", connected ({' or '.join(ways[:_MOST_WAYS])}{more})"


def _tied(references: Sequence[str], constraints: Sequence[Constraint]) -> list[str]:
    """Attributes, without their domain, that must be equal on the devices of a request or alternative."""
    found = []
    for each in constraints:
        covered = each.requests or references
        if each.match_attribute and any(reference in covered for reference in references):
            found.append(named(each.match_attribute.rpartition("/")[2]))
    return found
