"""Makes the one claim (`resource.k8s.io/v1`) that a pod gets for its asks."""

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from msgspec import Struct, structs

from conversion.claims import work
from conversion.claims.alternatives import Merged, TooMany
from conversion.claims.candidates import in_catalogue
from conversion.claims.claim_bodies import Body
from conversion.claims.containers import Ask, Role
from conversion.claims.instance_fit import (
    DeviceConfig,
    Serving,
    TypeRefusal,
    counts_of,
    group_of,
    most_interfaces,
    serve,
    tied,
    too_many_requests,
)
from conversion.claims.layout import EXTRA, masks, share_of
from conversion.claims.planning import (
    MOST_PLANS,
    PLANS_OF_LISTS,
    Numbered,
    Plan,
    plan,
    plan_in_one_place,
    remembered_plans,
)
from conversion.claims.templates import Template
from neuron import names
from neuron.findings import Finding, nearest, warning
from neuron.hardware.instances import InstanceType
from neuron.hardware.windows import Line
from runtime.text import counted

_MOST_NAMED: Final = 3
"""Instance types that a message names."""
_FEW_COLLECTIVES: Final = ("trn1", "trn1n")
_COLLECTIVE_CORES: Final = (1, 2, 8, 16, 32)
"""Cores that the runtime's collectives serve there, and multiples of the last one (huggingface/optimum-neuron#619)."""
_MOST_REMEMBERED: Final = 16
"""Containers of a pod that request devices, for which its claim is remembered."""


_Untried: TypeAlias = tuple[int, InstanceType, str, Sequence[int], str]
"""Position of a use of requests, and a type: in words, the sets that are not tried; their first devices and kind."""


class Claim(Struct, frozen=True):
    """The claim of one pod.

    Attributes:
        uses: for each ask, the request names that its container refers to. None: the container requests no devices.
            Empty tuple: the whole claim, by an entry without `request`.
        types: names of the instance types that can serve it, in catalogue order.
        connected: whether the claim requires more than an arbitrary set of devices.
        sets_lnc: whether it has a NeuronConfig for `DeviceConfig.lnc`.
        exact: for each ask, whether its container gets a share of a device with exactly the cores that it requests.
        warnings: NEU202, NEU213, NEU215, NEU219 and NEU227.
    """

    template: Template
    uses: tuple[tuple[str, ...] | None, ...]
    types: tuple[str, ...]
    connected: bool
    exact: tuple[bool, ...]
    warnings: tuple[Finding, ...] = ()
    sets_lnc: bool = False

    def of(self, asks: Sequence[Ask]) -> "Claim":
        """The claim of those that ask for devices, among asks of which others ask for nothing."""
        uses, exact = iter(self.uses), iter(self.exact)
        return structs.replace(
            self,
            uses=tuple([next(uses) if ask.amount else None for ask in asks]),
            exact=tuple([bool(ask.amount) and next(exact) for ask in asks]),
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Refusal:
    """Why no candidate instance type serves the pod.

    Attributes:
        findings: at least one error.
        unknown: whether they say only that a candidate is not known well enough: the pod may be right.
    """

    findings: tuple[Finding, ...]
    unknown: bool = False


def make_claim(
    asks: Sequence[Ask],
    candidates: Sequence[InstanceType],
    config: DeviceConfig,
    device_class: str,
    *,
    pin_types: bool,
    unconnected: bool = False,
    others: Iterable[InstanceType] = (),
) -> Claim | Refusal:
    """Make the claim of a pod.

    Args:
        asks: one per container, init containers first.
        candidates: instance types to choose from, in order; not empty.
        pin_types: whether selectors must restrict the claim to the candidates, because node selection does not.
        unconnected: whether counts that cannot be connected are allowed.
        others: instance types that a refusal may name, if they serve what the candidates do not.

    Raises:
        conversion.claims.work.TooMuchWorkError: the claim is not remembered, and takes more work than is left.
    """
    types = _Types(candidates)
    asking = tuple([ask for ask in asks if ask.amount]) or tuple(asks)
    few = len(asking) <= _MOST_REMEMBERED
    make = _remembered.of if few else _make
    # Only findings name containers, so pods that differ by such names, or by containers that ask for nothing, share a
    # claim.
    same = (
        tuple([_nameless(ask.role, ask.resource, ask.amount, ask.cores, ask.lnc) for ask in asking])
        if few and not config.efa
        else asking
    )
    made = make(same, types, config, device_class, pin_types, unconnected)
    if isinstance(made, _Made):
        claim = made.warned(asking, config) if made.warns else made.claim
        return claim if len(asking) == len(asks) else claim.of(asks)
    return made if isinstance(made, Refusal) else _refusal(made, asks, candidates, config, others, unconnected)


@dataclasses.dataclass(frozen=True, slots=True)
class _Made:
    """The claim of all pods that request the same, without warnings, and what warnings say of it.

    Attributes:
        left_out: names of the types that would distribute the devices differently.
        untried: NEU219, with the position of its container instead of the path.
        warns: whether there are warnings.
    """

    claim: Claim
    servings: Sequence[Serving]
    left_out: tuple[str, ...]
    untried: tuple[tuple[int, Finding], ...]
    warns: bool = False

    def warned(self, asks: Sequence[Ask], config: DeviceConfig) -> Claim:
        """The claim with the warnings for these containers."""
        return structs.replace(self.claim, warnings=self.warnings(asks, config))

    def warnings(self, asks: Sequence[Ask], config: DeviceConfig) -> tuple[Finding, ...]:
        """NEU202, NEU213, NEU215, NEU219, NEU226 and what collectives refuse, for these containers."""
        return (
            *_waste(asks, self.servings, config),
            *_of_another_lnc(asks, self.servings, config),
            *_collectives(asks, self.servings),
            *_unconnected(asks, self.servings),
            *(dataclasses.replace(each, path=asks[index].resource_path) for index, each in self.untried),
            *_left_out(self.left_out),
        )


@functools.lru_cache(maxsize=1024)
def _nameless(role: Role, resource: str, amount: int, cores: int, lnc: int | None = None) -> Ask:
    return Ask("", role, "", resource, amount, cores=cores, lnc=lnc)


class _Types:
    """Candidates as a key. The catalogue lives long, so identity is enough: hashing all fields costs more."""

    __slots__ = ("_hash", "entries")

    def __init__(self, entries: Sequence[InstanceType]) -> None:
        self.entries = tuple(entries)
        self._hash = hash(tuple(map(id, self.entries)))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Types):
            return False
        return self.entries is other.entries or list(map(id, self.entries)) == list(map(id, other.entries))


def _make(
    asks: tuple[Ask, ...],
    types: _Types,
    config: DeviceConfig,
    device_class: str,
    pin_types: bool,
    unconnected: bool,
) -> "_Made | Refusal | Sequence[tuple[InstanceType, TypeRefusal]]":
    """What `make_claim` makes; the refusals of all types, if none of them serves the pod."""
    if config.efa is not None:
        # A constraint ties the interfaces, so the devices need it too, instead of an alternative for each group.
        types = _Types([dataclasses.replace(entry, counters=False) for entry in types.entries])
    candidates = types.entries
    # Containers that request cores may use one request together (`instance_fit.serve` counts requests).
    long_lived = sum(1 for ask in asks if ask.amount and ask.role is not Role.INIT and not ask.in_cores)
    if long_lived > names.MAX_REQUESTS_PER_CLAIM:
        return Refusal((too_many_requests(long_lived),))
    # Cores are different numbers of devices on each kind of type, and share the alternatives of a request.
    requests = sum(2 if ask.in_cores else 1 for ask in asks if ask.amount)
    work.current().spend((1 + requests) * len(set(_alike(types))))
    answers = _answers(types, asks, config, unconnected=unconnected)
    if config.efa is not None:
        answers = [tied(each, asks, config) if isinstance(each, Serving) else each for each in answers]
    servings = [answer for answer in answers if isinstance(answer, Serving)]
    refusals = [
        (entry, answer) for entry, answer in zip(candidates, answers, strict=True) if isinstance(answer, TypeRefusal)
    ]
    # A type of unknown size serves any single request. It does not count if every type of known size refuses the pod.
    only_unknown = all(serving.entry.devices is None and not serving.entry.groups for serving in servings)
    if not servings or (only_unknown and refusals and not pin_types):
        return refusals
    # A pod that sets the logical NeuronCore gets a type where it can be set, if a candidate is of such a type.
    if any(serving.sets_lnc for serving in servings):
        servings = [serving for serving in servings if serving.sets_lnc]
    servings, left_out = _same_requests(servings, asks, config, unconnected=unconnected)
    servings = sorted(servings, key=lambda serving: _unused(serving, asks, config))
    if config.efa is not None:
        # The constraint names one size of group.
        size = group_of(servings[0])
        left_out += tuple(each.entry.name for each in servings if group_of(each) != size)
        servings = [each for each in servings if group_of(each) == size]
    numbered = Numbered(servings)
    planned = remembered_plans.of(numbered, config)
    if isinstance(planned, Plan) and not planned.division.affordable:
        # Whole devices are found sooner than devices with cores beside them.
        found = _whole_devices(servings, asks, config, unconnected=unconnected)
        whole = Numbered(found) if found else None
        again = plan(whole.servings, config) if whole else planned
        if whole and isinstance(again, Plan) and again.division.affordable:
            planned, numbered, servings = again, whole, found
        else:
            placed = plan_in_one_place(numbered.servings, config)
            planned = placed if isinstance(placed, Plan) and placed.division.affordable else planned
    slow = isinstance(planned, Plan) and not planned.division.affordable
    if slow and not unconnected and any(ask.in_cores for ask in asks):
        # All devices of a group are found sooner than some of them.
        found = _whole_sets(servings, asks, config)
        filled = Numbered(found) if found else None
        again = plan(filled.servings, config) if filled else planned
        if filled and isinstance(again, Plan) and again.division.affordable:
            planned, numbered, servings = again, filled, found
    if isinstance(planned, TooMany):
        return Refusal((_too_many_alternatives(planned),))
    merged = planned.merged
    given, servings = servings, numbered.of_pod(merged.servings, servings)
    served = {serving.entry.name for serving in servings}
    left_out += tuple(serving.entry.name for serving in given if serving.entry.name not in served)
    by_type = pin_types or _needs_types(merged, asks)
    made_of = _requests.of(planned, config, device_class, by_type)
    claim = Claim(
        template=made_of.template,
        uses=tuple(None if place is None else made_of.uses[place] for place in numbered.places),
        types=tuple(entry.name for entry in candidates if entry.name in served),
        connected=config.efa is not None or _is_connected(merged),
        exact=tuple(
            any(identity in servings[0].layout.shares for identity in use)
            and all(serving.cores(index, ask.lnc or config.lnc) == ask.amount for serving in servings)
            for index, (ask, use) in enumerate(zip(asks, servings[0].layout.uses, strict=True))
        ),
        sets_lnc=servings[0].sets_lnc,
    )
    untried = tuple(_untried(asks, merged, config, made_of.untried, numbered.places))
    made = _Made(claim, servings, left_out, untried)
    return dataclasses.replace(made, warns=True) if made.warnings(asks, config) else made


class _Requests(Struct, frozen=True):
    """The requests of a plan as Kubernetes has them. `untried`: see `_left_untried`."""

    template: Template
    uses: tuple[tuple[str, ...], ...]
    untried: tuple[_Untried, ...]


def _made_of(planned: Plan, config: DeviceConfig, device_class: str, by_type: bool) -> _Requests:
    body = Body(planned.merged, planned.division, config, device_class, by_type=by_type)
    return _Requests(
        Template.make(body.summary(), body.spec()),
        tuple(map(body.use, planned.merged.servings[0].layout.uses)),
        tuple(_left_untried(planned.merged)),
    )


_requests: Final = work.Results(_made_of, MOST_PLANS, PLANS_OF_LISTS)


@functools.lru_cache(maxsize=64)
def _alike(types: _Types) -> tuple[int, ...]:
    """For each candidate, the position of the first one that differs from it only in what does not matter here."""
    first: dict[InstanceType, int] = {}
    kinds = (
        dataclasses.replace(entry, name="", family="", memory_gib=None, accelerator=None, offered=True, released=True)
        for entry in types.entries
    )
    return tuple(first.setdefault(kind, place) for place, kind in enumerate(kinds))


def _answers(
    types: _Types, asks: Sequence[Ask], config: DeviceConfig, *, unconnected: bool
) -> list[Serving | TypeRefusal]:
    """How each candidate serves the pod. Types of one kind serve it alike; the findings name the first of them."""
    answers: list[Serving | TypeRefusal] = []
    for entry, place in zip(types.entries, _alike(types), strict=True):
        if place == len(answers):
            answers.append(serve(entry, asks, config, unconnected=unconnected))
            continue
        known = answers[place]
        answers.append(dataclasses.replace(known, entry=entry) if isinstance(known, Serving) else known)
    return answers


# Controllers create the same pod many times.
_remembered: Final = work.Results(_make, 128, for_lists=2048)


def _same_requests(
    servings: Sequence[Serving], asks: Sequence[Ask], config: DeviceConfig, *, unconnected: bool
) -> tuple[list[Serving], tuple[str, ...]]:
    """The servings with equal requests, and the names of the types that are left out.

    Containers refer to requests, not to alternatives. Types on which whole devices and cores beside them are two
    requests give whole devices only, if another type needs one request. Containers use a request together only if they
    do so on all types.
    """
    if any(serving.splits for serving in servings) and len({serving.layout.uses for serving in servings}) > 1:
        whole = [
            serve(serving.entry, asks, config, unconnected=unconnected, splits=False) if serving.splits else serving
            for serving in servings
        ]
        servings = [
            again if isinstance(again, Serving) else serving for serving, again in zip(servings, whole, strict=True)
        ]
    if any(serving.pools for serving in servings) and len({serving.layout.uses for serving in servings}) > 1:
        alone = [
            serve(serving.entry, asks, config, unconnected=unconnected, pools=False) if serving.pools else serving
            for serving in servings
        ]
        if all(isinstance(each, Serving) for each in alone):
            servings = [each for each in alone if isinstance(each, Serving)]
    wanted = servings[0].layout.uses
    return (
        [serving for serving in servings if serving.layout.uses == wanted],
        tuple(serving.entry.name for serving in servings if serving.layout.uses != wanted),
    )


def _whole_devices(
    servings: Sequence[Serving], asks: Sequence[Ask], config: DeviceConfig, *, unconnected: bool
) -> list[Serving]:
    """The servings with whole devices for containers that get devices and cores beside them; empty if one has none."""
    if not any(serving.splits for serving in servings):
        return []
    answers = [serve(each.entry, asks, config, unconnected=unconnected, splits=False, pools=False) for each in servings]
    found = [each for each in answers if isinstance(each, Serving)]
    return found if len({each.layout.uses for each in found}) == 1 and len(found) == len(servings) else []


def _whole_sets(servings: Sequence[Serving], asks: Sequence[Ask], config: DeviceConfig) -> list[Serving]:
    """The servings with whole groups for cores; empty if one has none."""
    rounding = structs.replace(config, rounds_cores=True)
    answers = [serve(each.entry, asks, rounding, splits=False) for each in servings]
    found = [each for each in answers if isinstance(each, Serving)]
    return found if len({each.layout.uses for each in found}) == 1 and len(found) == len(servings) else []


def _unused(serving: Serving, asks: Sequence[Ask], config: DeviceConfig) -> int:
    """Cores that containers get and did not request."""
    return sum(serving.unused(asks, config).values())


def _needs_types(merged: Merged, asks: Sequence[Ask]) -> bool:
    """Whether all requests must select instance types, because a device of another type would be wrong.

    A device group or window exists only on types that publish it, and a single device is right on any type. Cores, LNC
    and a whole node without groups are right only on the types for which they were computed. The same holds for
    requests with alternatives that one container uses together: if they fill the node, no constraint connects them.
    """
    first = merged.servings[0]
    if first.sets_lnc or any(ask.in_cores and ask.amount for ask in asks):
        return True
    if any(map(first.layout.has_rest, first.layout.counts)):
        return True
    together = any(use and len(use) > 1 for use in first.layout.uses)
    several = any(len(alternatives) > 1 for alternatives in merged.alternatives.values())
    if together and several and len(merged.servings) > 1:
        return True
    tied = {identity for tie in merged.ties for identity, _ in tie.members}
    return any(count > 1 and identity not in tied for identity, count in first.layout.counts.items())


def _is_connected(merged: Merged) -> bool:
    several = any(len(alternatives) > 1 for alternatives in merged.alternatives.values())
    return several or any(serving.connected_sets or serving.layout.shares for serving in merged.servings)


def _waste(asks: Sequence[Ask], servings: Sequence[Serving], config: DeviceConfig) -> list[Finding]:
    """NEU202 for each container whose cores were rounded up, with the first type where they were."""
    found: dict[int, Finding] = {}
    for serving in servings:
        for members, unused in serving.unused(asks, config).items():
            index, amount = members[0], sum(asks[each].amount for each in members)
            if unused <= 0 or index in found:
                continue
            who = " and ".join([asks[each].container for each in members[:_MOST_NAMED]])
            cores = serving.cores(index, asks[index].lnc or config.lnc)
            message = (
                f"{who} asked for {counted(amount, 'core')} and gets {_gets(serving, index, cores)}: {unused} unused."
            )
            if len(members) > 1:
                message = message.replace(" and gets ", " together and get ")
            found[index] = warning("NEU202", asks[index].resource_path, message, value=str(amount))
    return [found[index] for index in sorted(found)]


def _of_another_lnc(asks: Sequence[Ask], servings: Sequence[Serving], config: DeviceConfig) -> Iterator[Finding]:
    """NEU226 for each container that names cores, beside its devices, of another logical NeuronCore than it gets."""
    for index, ask in enumerate(asks):
        for serving in servings if ask.cores else ():
            lnc = ask.lnc or config.lnc or serving.entry.default_logical_neuron_core
            cores = serving.cores(index, lnc)
            if cores != ask.cores:
                message = (
                    f"container {ask.container} asks for {ask.resource}: {ask.amount} with {names.RESOURCE_NEURONCORE}:"
                    f" {ask.cores}, and the claim has logical NeuronCore {lnc}: {counted(cores, 'core')} on"
                    f" {serving.entry.name}."
                )
                fix = f"Set the annotation {names.ANNOTATION_LNC} to the one for which the model is compiled."
                yield warning("NEU226", ask.resource_path, message, fix, str(ask.cores))
                break


def _collectives(asks: Sequence[Ask], servings: Sequence[Serving]) -> Iterator[Finding]:
    """NEU227 for each container with a number of cores that the runtime's collectives do not serve on Trn1."""
    name = next((each.entry.name for each in servings if each.entry.family in _FEW_COLLECTIVES), None)
    for ask in asks if name is not None else ():
        if ask.in_cores and ask.amount and ask.amount not in _COLLECTIVE_CORES and ask.amount % _COLLECTIVE_CORES[-1]:
            message = (
                f"{ask.container} asks for {counted(ask.amount, 'core')}, and the runtime's collectives on {name}"
                f" serve {', '.join(map(str, _COLLECTIVE_CORES[:-1]))} or a multiple of {_COLLECTIVE_CORES[-1]}."
            )
            fix = f"Models without collectives run. Otherwise request {nearest(ask.amount, _COLLECTIVE_CORES)}."
            yield warning("NEU227", ask.resource_path, message, fix, str(ask.amount))


def _gets(serving: Serving, index: int, cores: int) -> str:
    """The devices of a container, such as `2 devices on inf2.48xlarge (4 cores)`."""
    use, layout = serving.layout.uses[index], serving.layout
    if not any(identity in layout.shares for identity in use):
        return f"{counted(layout.size(use), 'device')} on {serving.entry.name} ({counted(cores, 'core')})"
    return f"{counted(cores, 'core')} on {serving.entry.name}, which gives 1, 2, 4 or more cores of one device"


def _is_loose(serving: Serving, index: int) -> bool:
    return serving.devices[index] not in (0, *counts_of(serving.entry)) and serving.is_loose(index)


def _unconnected(asks: Sequence[Ask], servings: Sequence[Serving]) -> list[Finding]:
    """NEU215 for each container whose devices may be unconnected, with the first type where they may."""
    findings = []
    for index, ask in enumerate(asks):
        loose = next((each for each in servings if _is_loose(each, index)), None)
        if loose is not None:
            devices, connected = loose.devices[index], ", ".join(map(str, loose.entry.counts))
            message = (
                f"{ask.container} gets {devices} devices that need not be connected with each other on"
                f" {loose.entry.name}: policy allows it."
            )
            fix = f"Connected counts: {connected}."
            findings.append(warning("NEU215", ask.resource_path, message, fix, str(devices)))
    return findings


def _untried(
    asks: Sequence[Ask],
    merged: Merged,
    config: DeviceConfig,
    left: Sequence[_Untried],
    places: Sequence[int | None],
) -> Iterator[tuple[int, Finding]]:
    """NEU219 for each container whose devices cannot be everywhere on a type: 8 alternatives are the most.

    What would work is planned for pods of which one container asks for devices.
    """
    alone = sum(1 for each in asks if each.amount) == 1 and not config.efa
    types = [serving.entry for serving in merged.servings]
    for place, entry, where, untried, kind in left:
        index = places.index(place)
        *first, last = map(str, untried)
        starts = f"{', '.join(first)} or {last}" if first else last
        verb = "is" if len(untried) == 1 else "are"
        message = f"{where} {verb} not tried, from device {starts}: the pod waits if no other {kind} is free."
        way = _way(asks[index], entry, types, config) if alone else ""
        yield (
            index,
            warning("NEU219", "", message, f"{way}`neuron-dra explain` shows which devices are free.", entry.name),
        )


def _way(ask: Ask, entry: InstanceType, types: Sequence[InstanceType], config: DeviceConfig) -> str:
    """The annotation with which everything is tried, if one type alone does it. Ends with a space."""
    asks = [_nameless(ask.role, ask.resource, ask.amount, 0, ask.lnc)]
    serving = serve(entry, asks, config) if len(types) > 1 else None
    if not isinstance(serving, Serving):
        return ""
    planned = remembered_plans.of(Numbered([serving]), config)
    if not isinstance(planned, Plan) or next(_left_untried(planned.merged), None) is not None:
        return ""
    return f"All are tried with the annotation {names.ANNOTATION_INSTANCE_TYPE}: {entry.name}. "


def _left_untried(merged: Merged) -> Iterator[_Untried]:
    """For each container and type with sets that are not tried: in words, their first devices, and their kind."""
    for serving in merged.servings:
        for identity in serving.layout.counts:
            index = next((index for index, use in enumerate(serving.layout.uses) if identity in use), None)
            run = (identity, share_of(identity)) if serving.layout.has_rest(identity) else (identity,)
            count = serving.layout.size(run)
            options = merged.options(serving, identity)
            if index is None or identity < EXTRA or not all(option.ids or option.places for option in options):
                continue
            sets = _sets_of(serving, identity, count)
            if not sets:
                continue
            tried = set(masks([option.ids for option in options]))
            tried |= {place | other if len(run) > 1 else place for option in options for place, other in option.places}
            untried = [start for start, devices in sets.items() if not any([_has(each, devices) for each in tried])]
            if untried:
                runs = serving.entry.line is not None or next(iter(sets.values())).bit_count() == count
                kind = "run" if runs and count not in serving.entry.groups else "group"
                where = f"{len(untried)} of the {len(sets)} {kind}s of {count} devices on {serving.entry.name}"
                yield index, serving.entry, where, untried, kind


def _has(devices: int, others: int) -> bool:
    """Whether the first devices have all others among them; as bit masks."""
    return devices & others == others


def _sets_of(serving: Serving, identity: int, count: int) -> Mapping[int, int]:
    """The sets of devices that a request could get, as bit masks by their first device: runs, or groups of one request.

    Where only the whole node has so many devices, these are the runs of the node.
    """
    line = serving.entry.line
    if line is not None:
        return _runs_of(line, count) if 1 < count < line.devices else {}
    group = next((each.group for each in serving.connected_sets if each.requests == (identity,)), None)
    devices = serving.entry.devices or 0
    if group == devices and count < devices:
        starts, size = range(devices - count + 1), count
    else:
        if not group or not devices:
            return {}
        starts, size = range(0, devices, group), group
    return dict(zip(starts, masks([range(start, start + size) for start in starts]), strict=True))


@functools.lru_cache(maxsize=64)
def _runs_of(line: Line, count: int) -> Mapping[int, int]:
    starts = line.starts(count)
    return dict(zip(starts, masks([line.window(count, start) for start in starts]), strict=True))


def listed(types: Sequence[str]) -> str:
    """The first of these types, for a message."""
    return ", ".join(types[:_MOST_NAMED]) + (", …" if len(types) > _MOST_NAMED else "")


def _left_out(types: Sequence[str]) -> list[Finding]:
    """NEU213 for types that can serve the pod, but with other uses for the init containers."""
    if not types:
        return []
    return [
        warning(
            "NEU213",
            "spec.initContainers",
            f"{listed(types)} would distribute the devices differently and cannot share a claim with the other types.",
            f"To run there, set the annotation {names.ANNOTATION_INSTANCE_TYPE}.",
        )
    ]


def _refusal(
    refusals: Sequence[tuple[InstanceType, TypeRefusal]],
    asks: Sequence[Ask],
    candidates: Sequence[InstanceType],
    config: DeviceConfig,
    others: Iterable[InstanceType],
    unconnected: bool,
) -> Refusal:
    """The first candidate's refusal, with the counts that the other candidates allow.

    A type that lacks a requested setting is named only if all candidates lack it: a message about trn1 does not help a
    pod that requests an UltraServer.
    """
    suitable = [pair for pair in refusals if not pair[1].unsuitable]
    if suitable:
        refusals, candidates = suitable, [entry for entry, _ in suitable]
    unlisted = [entry for entry, refusal in refusals if refusal.unknown and entry.cores_per_device is None]
    if unlisted or all(refusal.unknown for _, refusal in refusals):
        entry = unlisted[0] if unlisted else refusals[0][0]
        return Refusal((_unknown(entry, next(ask for ask in asks if ask.amount), config),), unknown=True)
    if config.efa is not None:
        refusals = sorted(refusals, key=lambda pair: -most_interfaces(pair[0]))
    by_path = {ask.resource_path: ask for ask in asks}
    # Of all refusals, only this one is read: its findings name the type and the containers.
    entry, known = refusals[0]
    answer = serve(entry, asks, config, unconnected=unconnected)
    answer = tied(answer, asks, config) if isinstance(answer, Serving) else answer
    findings = answer.findings if isinstance(answer, TypeRefusal) else known.findings
    known_types = {entry.name for entry in candidates}
    here = _Types(candidates)
    elsewhere = _Types([each for each in others if each.name not in known_types and each.devices is not None])

    def fix(ask: Ask) -> str:
        return _choices(_nameless(ask.role, ask.resource, ask.amount, ask.cores, ask.lnc), here, elsewhere, config)

    return Refusal(
        tuple(
            dataclasses.replace(each, fix=fix(by_path[each.path])) if each.code == "NEU105" else each
            for each in findings
        )
    )


def _unknown(entry: InstanceType, ask: Ask, config: DeviceConfig) -> Finding:
    """NEU218: the figure of a type on which the answer depends is not known."""
    path, fix = ask.resource_path, in_catalogue(entry.name)
    requested = counted(ask.amount, "core" if ask.in_cores else "device")
    if config.ultraserver_mode is not None and entry.ultraserver_nodes is None:
        path = f"metadata.annotations[{names.ANNOTATION_ULTRASERVER_MODE}]"
        what = f"whether {entry.name} is in UltraServers of {config.ultraserver_mode} nodes"
        fix = f"Add ultraserverNodes of {entry.name} to the types of an InstanceTypeCatalog (docs/policies.md)."
    elif entry.devices is not None and entry.cores_per_device is not None:
        what = f"whether {entry.name} publishes device groups that connect {requested}"
        fix = f"Add deviceGroups of {entry.name} to the types of an InstanceTypeCatalog (docs/policies.md)."
    else:
        unit = "core" if ask.in_cores else "device"
        what = f"how many {unit}s {entry.name} has, and whether it serves {requested}"
    message = f"it is not known {what}: the pod is left as it is."
    return Finding("NEU218", path, message, fix, entry.name)


@functools.lru_cache(maxsize=64)
def _choices(ask: Ask, candidates: _Types, others: _Types, config: DeviceConfig) -> str:
    """What to request instead of a count: the nearest ones of the candidates, and the other types that serve it."""
    units = {
        count * ((entry.cores(ask.lnc) or 1) if ask.in_cores else 1)
        for entry in candidates.entries
        for count in counts_of(entry)
    }
    choice = nearest(ask.amount, units)
    fix = [f"Nearest valid counts: {choice}."] if choice else []
    answers = _answers(others, [ask], config, unconnected=False)
    serving = [entry.name for entry, answer in zip(others.entries, answers, strict=True) if isinstance(answer, Serving)]
    if serving:
        fix.append(f"Instance types that serve {ask.amount}: {listed(serving)}.")
    return " ".join(fix)


def _too_many_alternatives(needed: TooMany) -> Finding:
    limit = "alternatives" if needed.what == "different requests" else needed.what
    return Finding(
        "NEU108",
        "spec.containers",
        f"the candidate instance types need {needed.count} {needed.what}, and a ResourceClaim holds at most"
        f" {needed.most} {limit}.",
        f"Select an instance type with the annotation {names.ANNOTATION_INSTANCE_TYPE}.",
        str(needed.count),
    )
