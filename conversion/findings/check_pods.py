"""Checks that containers and claims of a pod or pod template fit each other, and how resources are written. Pure.

Kubernetes admits a pod whose containers do not refer to its claim, or refer to a request that the claim does not have.
Such a pod starts without devices, or stays in ContainerCreating without a message to the user.
"""

import dataclasses
import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from checks.claims.counts import check_together
from checks.claims.judging import ClaimContext
from checks.words import meant
from conversion.asks.pod_demand import UNKNOWN, KnownClaim, legacy_now
from conversion.findings import pod_findings
from conversion.findings.verification import check_damage
from conversion.objects import pods
from conversion.objects.pod_places import path_text
from neuron import names
from neuron.api.claim_specs import ClaimSpec, Leaf, entries_of
from neuron.api.configs import ConfigSource, NeuronConfig
from neuron.api.fields import mapping
from neuron.findings import Finding, Findings, Suggestions, quoted, short, warning

_SHOWN: Final = 40


@dataclasses.dataclass(frozen=True, slots=True)
class _ClaimReference:
    """One entry of a container's `resources.claims`.

    Attributes:
        owner: field path of the container.
        request: name of the claim's request; empty: the whole claim.
    """

    container: str
    owner: str
    path: str
    claim: str
    request: str


def check_pod(pod: pods.Pod, known: Mapping[str, KnownClaim], context: ClaimContext | None) -> list[Finding]:
    """Findings about a pod's containers and claims (NEU702 to NEU709).

    Args:
        pod: its view; paths of findings are those of a Pod.
        known: what is known of its claims, by name of the entry.
    """
    entries = pod.decode_claims() or []
    references = [reference for _, container, path in pod.sections() for reference in _references(container, path)]
    findings = Findings(check_damage(pod))
    # NEU707 explains already why no container refers to the claim.
    lost = any(finding.code == "NEU707" for finding in findings)
    used = {reference.claim for reference in references}
    for index, entry in enumerate(entries):
        path = f"spec.resourceClaims[{index}]"
        name = str(entry.get("name") or "")
        findings.add(_check_missing(entry, path, known.get(name, UNKNOWN)))
        if not lost and name not in used:
            message = (
                f"no container refers to claim {name[:_SHOWN]!r}: its devices are allocated and no container sees them."
            )
            fix = f"Add {{name: {name[:_SHOWN]}}} to resources.claims of the container that needs them."
            findings.add([warning("NEU702", path, message, fix, name)])
    check = _References(entries, known)
    for reference in references:
        findings.add(check.findings(reference))
    if context is not None:
        findings.add(_check_together(references, known, context))
    findings.add(_check_both_ways(pod, entries, known))
    findings.add(_check_bound(pod, entries, known))
    if not pod.labelled:
        findings.add(_check_own_devices(pod, references, known))
    return list(findings)


def _check_bound(
    pod: pods.Pod, entries: Sequence[Mapping[str, Any]], known: Mapping[str, KnownClaim]
) -> Iterator[Finding]:
    """NEU128: nothing allocates a claim that is made from a template for a pod that no scheduler places.

    A claim that exists may be allocated already.
    """
    node = pod.spec.nodeName
    for index, entry in enumerate(entries if node else ()):
        template = entry.get("resourceClaimTemplateName")
        if template and _is_ours(entry, known):
            message = (
                f"nodeName is {short(str(node), _SHOWN)!r}, so that no scheduler allocates claim"
                f" {_name_of(entry)[:_SHOWN]!r}, which is made from template {template[:60]}: the pod would wait"
                " for ever."
            )
            fix = (
                "Leave --same-node out, or debug the pod itself: kubectl debug POD --image=IMAGE --target=CONTAINER."
                " In a manifest, write a nodeSelector instead of nodeName."
            )
            yield Finding("NEU128", f"spec.resourceClaims[{index}]", message, fix, short(str(node), _SHOWN))
            return


def _check_own_devices(
    pod: pods.Pod, references: Sequence[_ClaimReference], known: Mapping[str, KnownClaim]
) -> Iterator[Finding]:
    """NEU901, NEU234 and NEU235 about a pod with its own claims; conversion says them about those that it makes."""
    ours: dict[str, dict[str, ClaimSpec]] = {}
    for each in references:
        judgement = known.get(each.claim, UNKNOWN).judgement
        if judgement is not None and judgement.leaves:
            ours.setdefault(each.owner, {})[each.claim] = judgement.spec
    for _, container, path in pod.sections():
        if path in ours:
            yield from pod_findings.pinned(container, path)
        for claim, spec in ours.get(path, {}).items():
            used = {each.request for each in references if each.owner == path and each.claim == claim}
            cores = {
                each.config.logical_neuron_core
                for each in entries_of(spec.configs, ConfigSource.FROM_CLAIM)
                if isinstance(each.config, NeuronConfig)
                # A reference without the name of a request is to the whole claim.
                and ("" in used or not each.requests or any(name.partition("/")[0] in used for name in each.requests))
            }
            yield from pod_findings.against_config(container, path, claim, cores)
    if ours:
        yield from pod_findings.host_devices(pod)


def _name_of(entry: Mapping[str, object]) -> str:
    """The name in an entry, as it is written: a value of another type, too."""
    name = entry.get("name", "")
    return name if isinstance(name, str) else quoted(name)


def _references(container: pods.Container, path: str) -> list[_ClaimReference]:
    claims = (container.decode_resources() or {}).get("claims") or ()
    return [
        _ClaimReference(
            container.name,
            path,
            f"{path}.resources.claims[{index}]",
            _name_of(each),
            str(each.get("request") or ""),
        )
        for index, each in enumerate(claims)
    ]


def _check_missing(entry: Mapping[str, Any], path: str, known: KnownClaim) -> list[Finding]:
    if not known.missing:
        return []
    template = entry.get("resourceClaimTemplateName")
    if template:
        message = f"ResourceClaimTemplate {template[:60]} does not exist in this namespace."
        fix = "The pod waits until it does: create it."
        return [warning("NEU705", f"{path}.resourceClaimTemplateName", message, fix, template)]
    claim = str(entry.get("resourceClaimName"))
    message = f"ResourceClaim {claim[:60]} does not exist in this namespace."
    return [warning("NEU706", f"{path}.resourceClaimName", message, "The pod waits until it does: create it.", claim)]


class _References:
    """Checks references of containers. Makes each list of known names once."""

    def __init__(self, entries: Sequence[Mapping[str, object]], known: Mapping[str, KnownClaim]) -> None:
        self._declared = dict.fromkeys(str(entry.get("name") or "") for entry in entries)
        self._known = known
        self._requests: dict[str, dict[str, None]] = {}
        self._suggestions = Suggestions()

    def findings(self, reference: _ClaimReference) -> list[Finding]:
        """NEU703 and NEU708."""
        claim, request = reference.claim, reference.request
        if claim not in self._declared:
            container = reference.container[:_SHOWN]
            message = f"container {container} refers to claim {claim[:_SHOWN]!r}, which is not declared."
            message += self._suggestions.did_you_mean(claim, self._declared)
            fix = "Add it to spec.resourceClaims."
            return [Finding("NEU703", f"{reference.path}.name", message, fix, claim)]
        judgement = self._known.get(claim, UNKNOWN).judgement
        if not request or judgement is None:
            return []
        if claim not in self._requests:
            self._requests[claim] = dict.fromkeys(each.name for each in judgement.spec.requests)
        requests = self._requests[claim]
        if request in requests:
            return []
        meant = self._suggestions.did_you_mean(request, requests)
        message = f"claim {claim[:_SHOWN]!r} has no request {request[:_SHOWN]!r}.{meant}"
        fix = f"Its requests are: {', '.join(itertools.islice(requests, 8)) or 'none'}."
        return [Finding("NEU708", f"{reference.path}.request", message, fix, request)]


def _check_together(
    references: Sequence[_ClaimReference], known: Mapping[str, KnownClaim], context: ClaimContext
) -> list[Finding]:
    """NEU709: check the devices that one container uses of one claim as one number."""
    uses: dict[tuple[str, str], list[_ClaimReference]] = {}
    for reference in references:
        uses.setdefault((reference.owner, reference.claim), []).append(reference)
    findings: list[Finding] = []
    # Containers of one pod mostly use the same requests of a claim: their findings differ only in the path.
    answered: dict[tuple[str, frozenset[str]], list[Finding]] = {}
    leaves: dict[str, dict[str, list[Leaf]]] = {}
    for (owner, claim), together in uses.items():
        path = f"{owner}.resources.claims"
        judgement = known.get(claim, UNKNOWN).judgement
        if judgement is None:
            continue
        if claim not in leaves:
            by_request: dict[str, list[Leaf]] = {}
            leaves[claim] = by_request
            for leaf in judgement.leaves:
                by_request.setdefault(leaf.request, []).append(leaf)
        everything = any(not each.request for each in together)
        used = frozenset() if everything else frozenset(each.request for each in together)
        answer = answered.get((claim, used))
        if answer is None:
            mine = leaves[claim] if everything else [name for name in leaves[claim] if name in used]
            answer = answered[claim, used] = check_together(
                judgement.spec,
                [leaf for name in mine for leaf in leaves[claim][name]],
                path,
                context.index,
                context.catalogue,
                unconnected=context.unconnected,
            )
        findings += [dataclasses.replace(finding, path=path) for finding in answer]
    return findings


def _check_both_ways(
    pod: pods.Pod, entries: Sequence[Mapping[str, object]], known: Mapping[str, KnownClaim]
) -> list[Finding]:
    """NEU704: limits for the device plugin and a claim for the DRA driver, which do not share a node."""
    claim = next((entry for entry in entries if _is_ours(entry, known)), None)
    for _, container, path in pod.sections() if claim is not None else ():
        legacy = next(iter(legacy_now(container.decode_resources())), "")
        if legacy and claim is not None:
            message = f"container {container.name[:24]} asks for {legacy}, and claim {_name_of(claim)[:24]!r}"
            message += " for Neuron devices too."
            fix = "No node serves both: drop one of them."
            return [warning("NEU704", f"{path}.resources.limits[{legacy}]", message, fix, legacy)]
    return []


def _is_ours(entry: Mapping[str, Any], known: Mapping[str, KnownClaim]) -> bool:
    judgement = known.get(str(entry.get("name")), UNKNOWN).judgement
    if judgement is not None:
        return bool(judgement.leaves)
    # The content is not known. The name of the claim or template is the best evidence.
    return any("neuron" in str(entry.get(field)) for field in ("name", "resourceClaimTemplateName"))


# --- resources ----------------------------------------------------------------------------------------------------

_SECTIONS: Final = ("containers", "initContainers")
_AMOUNTS: Final = ("limits", "requests")
_LEGACY: Final = frozenset(names.LEGACY_RESOURCES)
_WORDS: Final = (b"neuron", b"aws", b"amazon", b"\\u")
_RESOURCES: Final = frozenset({*_AMOUNTS, "claims"})
_MOST_NAMES: Final = 128
"""Resources of one pod that are compared: each comparison takes up to 0.1 ms."""
_KNOWN: Final = b"|".join(re.escape(name).encode() for name in ("cpu", "memory", *sorted(names.LEGACY_RESOURCES)))
_ONLY_KNOWN: Final = re.compile(
    rb'\{(?:"(?:limits|requests)":\{(?:"(?:%b)":"[^"\\]*",?)*+\},?'
    rb'|"claims":\[(?:\{(?:"(?:name|request)":"[^"\\]*",?)*+\},?)*+\],?)*+\}' % _KNOWN
).fullmatch
"""Matches the JSON of `resources` with no other names than those; a tenth of the cost of decoding it."""


def misspelt_resources(pod: pods.Pod, known: Collection[str] = ()) -> Iterator[Finding]:
    """NEU221 for names that look like a legacy resource and are none, and NEU222 for fields that look like limits.

    Args:
        known: extended resources of DeviceClasses: an administrator can give them any name.
    """
    left, suggestions = _MOST_NAMES, Suggestions()
    for _, container, path in pod.sections():
        raw = bytes(container.resources)
        if left <= 0 or _ONLY_KNOWN(raw) or not any(word in raw.lower() for word in _WORDS):
            continue
        called = container.name[:63]  # the longest name that Kubernetes allows
        resources = container.decode_resources(path) or {}
        for field in (short(each) for each in resources if each not in _RESOURCES):
            # Kubernetes does not know fields such as `limit`; kinds of others keep them.
            if close := suggestions.closest_word(field, _AMOUNTS):
                message = f"container {called} has resources.{field}, which is no field. Did you mean {close}?"
                fix = "Correct the field: it is ignored."
                yield warning("NEU222", f"{path}.resources.{field}", message, fix, field)
        where = {name: field for field in reversed(_AMOUNTS) for name in resources.get(field) or ()}
        for name in list(where)[:left]:
            left -= 1
            if name not in known and (close := meant(name)):
                message = f"container {called} asks for {quoted(name)}, which no Neuron device plugin offers."
                message += f" Did you mean '{close}'?"
                fix = "Correct the name: the pod would stay Pending, without devices."
                yield warning("NEU221", f"{path}.resources.{where[name]}[{name}]", message, fix, name)


_MOST_CONTAINERS: Final = 64
_HOLDERS: Final = frozenset({"limit", "limits", "request", "requests", "resource", "resources"})
"""Fields that somebody wrote to ask for resources, in lower case."""
_DEEPEST: Final = 4


def misplaced_resources(template: Mapping[str, object]) -> Iterator[Finding]:
    """NEU129. `template`: a pod, or a pod template, with values of any type."""
    spec = mapping(template.get("spec"))
    yield from _beside((), template, ("spec", "metadata", "status"))
    whole = mapping(spec.get("resources"))
    for field in _AMOUNTS:
        for resource in _legacy(whole.get(field)):
            where = path_text(("spec", "resources", field))
            message = f"the pod as a whole asks for {resource}: Kubernetes takes only CPU and memory there."
            fix = "The API server refuses the pod. Put it under resources.limits of the container."
            yield Finding("NEU129", f"{where}[{resource}]", message, fix, resource)
    yield from _beside(("spec",), spec, (*_SECTIONS, "resources", "nodeSelector", "overhead"))
    for section in _SECTIONS:
        containers = spec.get(section)
        for index, each in enumerate(containers[:_MOST_CONTAINERS] if isinstance(containers, list) else ()):
            place, container = ("spec", section, index), mapping(each)
            yield from _beside(place, container, ("resources",))
            resources = mapping(container.get("resources"))
            for resource in _legacy(resources):
                yield _unread((*place, "resources"), resource, resource)
            yield from _beside((*place, "resources"), resources, _AMOUNTS)
    others = spec.get("ephemeralContainers")
    for index, each in enumerate(others[:_MOST_CONTAINERS] if isinstance(others, list) else ()):
        if resource := _asked(mapping(each), _DEEPEST):
            where = path_text(("spec", "ephemeralContainers", index))
            message = f"an ephemeral container asks for {resource}: Kubernetes takes no resources there."
            fix = "The API server refuses it. Put it under resources.limits of a container."
            yield Finding("NEU129", where, message, fix, resource)


def misplaced_around(data: Mapping[str, object], path: Sequence[str | int]) -> Iterator[Finding]:
    """NEU129 for resources around a pod template, as `spec.resources` of a Deployment. `path`: of the pod template."""
    owner: object = data
    for depth, step in enumerate(path):
        for field, value in mapping(owner).items():
            resource = _asked({field: value}, 2) if field.lower() in _HOLDERS else ""
            if resource:
                yield _unread(path[:depth], field, resource)
        owner = mapping(owner).get(step) if isinstance(step, str) else None


def _beside(path: Sequence[str | int], owner: Mapping[str, object], known: Sequence[str]) -> Iterator[Finding]:
    """Fields of a mapping, other than the known ones, that name a legacy resource."""
    for field, value in owner.items():
        if field in known or not (amounts := mapping(value)):
            continue
        inner = [amounts, *map(mapping, amounts.values())]
        resource = next((found for each in inner for found in _legacy(each)), "") or _asked(amounts, _DEEPEST)
        if resource:
            yield _unread(path, field, resource)


def _asked(value: Mapping[str, object], depth: int) -> str:
    """A legacy resource that stands in a field for resources, at most so many mappings deep; empty if there is none."""
    for field, inner in value.items():
        below = mapping(inner)
        if str(field).lower() in _HOLDERS and (found := next(_legacy(below), "")):
            return found
        if depth > 1 and below and (found := _asked(below, depth - 1)):
            return found
    return ""


def _legacy(amounts: object) -> Iterator[str]:
    return (each for each in mapping(amounts) if each in _LEGACY)


def _unread(path: Sequence[str | int], field: object, resource: str) -> Finding:
    where = path_text(path) or "the object"
    held = "" if field == resource else f" with {resource}"
    message = f"{where} has {quoted(field)}{held}, which is no field there: the pod gets no device."
    fix = "kubectl refuses the object, or the field is dropped. Put it under resources.limits of the container."
    return Finding("NEU129", path_text((*path, str(field))), message, fix, resource)
