"""Templates of operators, which ConversionPolicies map to a demand, and the check that one serves the demand. Pure.

A mapped template serves a pod if it requests, on every instance type that it admits and the pod may run on, what
conversion would request there: the same number of devices or cores of the same DeviceClass, connected in the same way,
with the same logical NeuronCore and UltraServer mode.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Final

from msgspec import structs

from checks.claims.configs import entries_by_class
from checks.claims.counts import check_together
from checks.claims.judging import ClaimContext, ClaimJudgement, judge_claim
from conversion.claims.containers import Ask
from conversion.claims.instance_fit import DeviceConfig
from conversion.claims.making import Claim, listed, make_claim
from conversion.claims.templates import API_VERSION, KIND, Template
from neuron import names, quantities
from neuron.api.claim_reader import read_claim, value_text
from neuron.api.claim_specs import ClaimSpec, DeviceRequest, Leaf
from neuron.api.configs import configs_in_force
from neuron.findings import Finding, Severity
from neuron.hardware.instances import InstanceType

_LOOSE: Final = ("NEU524", "NEU525", "NEU709")
"""Warnings about devices that nothing keeps connected. For mapped templates they are differences."""
_MOST_SUMS: Final = 64
"""Different totals of a claim with alternatives. A claim with more is refused as not comparable."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class MappedTemplate:
    """One entry of a ConversionPolicy's `templates`. Compared by identity, because it lives as long as its policy.

    Attributes:
        amount: devices or cores that a container requests.
        lnc: logical NeuronCore that the pod must request; None: any.
        ultraserver_mode: UltraServer mode that the pod must request; None: any.
        inline: the template, if the policy carries it; None if it has to exist.
        spec: that of `inline`.
    """

    policy: str
    name: str
    resources: tuple[str, ...]
    amount: int
    lnc: int | None = None
    ultraserver_mode: int | None = None
    inline: Template | None = None
    spec: ClaimSpec | None = None

    def is_for(self, asks: Sequence[Ask], config: DeviceConfig, claim: Claim) -> bool:
        """Whether it is for a pod: every container that requests devices requests this amount, of the whole claim."""
        if any(claim.uses) or config.lncs or self.lnc not in (None, config.lnc):
            return False
        if self.ultraserver_mode not in (None, config.ultraserver_mode):
            return False
        return all(ask.resource in self.resources and ask.amount == self.amount for ask in asks if ask.amount)


@dataclasses.dataclass(frozen=True, slots=True)
class Need:
    """What a mapped template must serve for one pod.

    Attributes:
        device_class: DeviceClass to request from; empty: any.
        unconnected: whether a policy allows devices that are not connected.
    """

    mapped: MappedTemplate
    asks: tuple[Ask, ...]
    types: tuple[InstanceType, ...]
    config: DeviceConfig
    device_class: str
    unconnected: bool = False


def difference(need: Need, spec: ClaimSpec, context: ClaimContext) -> str:
    """How a template differs from what a pod needs, as a clause; empty if it serves the pod."""
    return next(_Comparison(need, _judge(need, spec, context), context).differences(), "")


def differences_by_type(need: Need, spec: ClaimSpec, context: ClaimContext) -> list[str]:
    """As `difference`, for each instance type of the need alone."""
    judgement = _judge(need, spec, context)
    alone = (dataclasses.replace(need, types=(entry,)) for entry in need.types)
    return [next(_Comparison(each, judgement, context).differences(), "") for each in alone]


def _judge(need: Need, spec: ClaimSpec, context: ClaimContext) -> ClaimJudgement:
    return judge_claim(spec, structs.replace(context, unconnected=need.unconnected))


class _Comparison:
    """Compares one template with one need."""

    def __init__(self, need: Need, judgement: ClaimJudgement, context: ClaimContext) -> None:
        self._need = need
        self._judgement = judgement
        self._context = context
        self._entries = entries_by_class(judgement.spec, context.classes)

    def differences(self) -> Iterator[str]:
        """The differences, the most basic one first."""
        errors = [each for each in self._judgement.findings if each.severity is Severity.ERROR]
        if errors:
            yield f"it has an error: {errors[0]}".rstrip(".")
            return
        leaves = self._judgement.leaves
        if not leaves:
            yield "it requests no Neuron devices"
            return
        for leaf in leaves:
            devices = leaf.devices
            if self._need.device_class not in ("", devices.device_class):
                yield (
                    f"it requests DeviceClass {value_text(devices.device_class)}, and the pod gets devices of"
                    f" {self._need.device_class}"
                )
            if devices.admin_access:
                yield f"its request {value_text(devices.reference)} has adminAccess, which allocates no device"
        admitted = self._admitted(leaves)
        types = [entry for entry in self._need.types if entry.name in admitted]
        if not types:
            possible = listed([entry.name for entry in self._need.types])
            yield f"it selects {listed(admitted) or 'no known instance type'}, and the pod can run on {possible}"
            return
        for entry in types:
            yield from self._on(entry)

    def _admitted(self, leaves: Sequence[Leaf]) -> list[str]:
        """Instance types on which every request for Neuron devices has an alternative."""
        index = self._context.index
        by_request: dict[str, set[str]] = {}
        for leaf in leaves:
            by_request.setdefault(leaf.request, set()).update(index.types(leaf.mask))
        return [name for name in index.types(index.everything) if all(name in each for each in by_request.values())]

    def _on(self, entry: InstanceType) -> Iterator[str]:
        """Differences on one instance type."""
        need = self._need
        own = make_claim(
            need.asks,
            [entry],
            need.config,
            need.device_class or names.DEVICE_CLASS,
            pin_types=False,
            unconnected=need.unconnected,
        )
        if not isinstance(own, Claim):
            yield f"on {entry.name}: {own.findings[0].message.rstrip('.')}"
            return
        wanted = read_claim(KIND, API_VERSION, own.template.spec)[0]
        yield from self._settings(wanted, entry)
        whole = need.config.ultraserver_mode is not None
        has = self._totals(self._judgement.leaves, entry, whole=whole)
        wants = _totals(
            [[_amount(each, each.count)] for request in wanted.requests for each in request.alternatives[:1]]
        )
        if has is None or wants is None or not has <= wants:
            gives = " or ".join(sorted(map(_counted, has))) if has else "too many different numbers of devices"
            yield f"it gives {gives} on {entry.name}, where the pod needs {' or '.join(map(_counted, wants or ()))}"
        if own.connected and wanted.constraints:
            yield from (f"its devices need not be connected: {each.message.rstrip('.')}" for each in self._loose())

    def _settings(self, wanted: ClaimSpec, entry: InstanceType) -> Iterator[str]:
        first = wanted.requests[0]
        entries = entries_by_class(wanted, self._context.classes)[first.alternatives[0].device_class]
        wants = configs_in_force(entries, first.name)
        for leaf in self._judgement.leaves:
            if not leaf.mask & self._context.index.of_type(entry.name):
                continue
            has = configs_in_force(self._entries[leaf.devices.device_class], leaf.devices.reference)
            for words, field in (
                ("logical NeuronCore", "logical_neuron_core"),
                ("UltraServer mode", "ultraserver_mode"),
            ):
                one, other = getattr(has, field), getattr(wants, field)
                if one != other:
                    yield f"it sets {_setting(words, one)}, and the pod asks for {_setting(words, other)}"

    def _totals(
        self, leaves: Sequence[Leaf], entry: InstanceType, *, whole: bool
    ) -> frozenset[tuple[Decimal, Decimal]] | None:
        index = self._context.index
        kind = index.whole_nodes if whole else ~index.whole_nodes
        by_request: dict[str, list[tuple[Decimal, Decimal]]] = {}
        for leaf in leaves:
            mask = leaf.mask & index.of_type(entry.name) & kind
            choices = by_request.setdefault(leaf.request, [])
            if mask:
                count = index.devices(mask, entry.name) if leaf.devices.everything else leaf.devices.count
                choices.append(_amount(leaf.devices, count))
        return _totals(by_request.values())

    def _loose(self) -> list[Finding]:
        """Findings about devices that need not be connected."""
        context, judgement = self._context, self._judgement
        together = check_together(
            judgement.spec,
            judgement.leaves,
            "",
            context.index,
            context.catalogue,
            unconnected=self._need.unconnected,
        )
        return [each for each in (*judgement.findings, *together) if each.code in _LOOSE]


def _amount(request: DeviceRequest, count: int) -> tuple[Decimal, Decimal]:
    """Whole devices, and cores of shared devices, that a request gives."""
    share = next((amount for name, amount in request.capacity if name in names.CORES_SPELLINGS), None)
    if share is None:
        return Decimal(count), Decimal(0)
    try:
        return Decimal(0), count * quantities.parse_amount(share)
    except ValueError:
        return Decimal(count), Decimal(0)


def _totals(choices: Iterable[Sequence[tuple[Decimal, Decimal]]]) -> frozenset[tuple[Decimal, Decimal]] | None:
    """The totals that one choice of each request gives; None if there are too many."""
    totals = {(Decimal(0), Decimal(0))}
    for each in choices:
        totals = {(one + more, other + further) for one, other in totals for more, further in set(each)}
        if len(totals) > _MOST_SUMS:
            return None
    return frozenset(totals)


def _counted(total: tuple[Decimal, Decimal]) -> str:
    devices, cores = total
    parts = [f"{devices:f} device{'' if devices == 1 else 's'}"] if devices or not cores else []
    parts += [f"{cores:f} core{'' if cores == 1 else 's'} of shared devices"] if cores else []
    return " and ".join(parts)


def _setting(words: str, value: object) -> str:
    return f"no {words}" if value is None else f"{words} {value}"
