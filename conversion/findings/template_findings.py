"""Findings about the templates of operators that ConversionPolicies name: missing, different or unknown. Pure."""

import dataclasses
from collections.abc import Mapping
from typing import Final

from checks.claims.judging import ClaimContext, for_one_object
from conversion.claims.mapped_templates import Need, difference
from kubecel.budget import Clock
from neuron.api.claim_specs import ClaimSpec
from neuron.findings import Finding, warning


@dataclasses.dataclass(frozen=True, slots=True)
class KnownTemplates:
    """The templates of a namespace that policies may name.

    Attributes:
        specs: by name; None or no entry: not known.
        complete: whether a template that is not known does not exist.
    """

    namespace: str = ""
    specs: Mapping[str, ClaimSpec | None] = dataclasses.field(default_factory=dict)
    complete: bool = False

    def find(self, need: Need, context: ClaimContext) -> Finding | None:
        """NEU120, NEU121 or NEU230 about the template that a pod needs; None if it serves the pod."""
        spec = need.mapped.spec or self.specs.get(need.mapped.name)
        if spec is not None:
            return judged(need, self.namespace, spec, context)
        if self.complete:
            return missing(need, self.namespace, elsewhere=False)
        return unchecked(need, self.namespace, "it is not among the files")


NO_TEMPLATES: Final = KnownTemplates()


def missing(need: Need, namespace: str, *, elsewhere: bool) -> Finding:
    """NEU120: the template does not exist in the pod's namespace."""
    other = " Another namespace has one of this name, which these pods cannot use." if elsewhere else ""
    return Finding(
        "NEU120",
        _path(need),
        f"ResourceClaimTemplate {need.mapped.name}, which policy '{need.mapped.policy}' names for {_asked(need)}, does"
        f" not exist in namespace {namespace}.{other}",
        f"Create it in namespace {namespace}, or ask the cluster's admins.",
        need.mapped.name,
    )


def differs(need: Need, namespace: str, why: str) -> Finding:
    """NEU121: the template does not serve the pod."""
    return Finding(
        "NEU121",
        _path(need),
        f"ResourceClaimTemplate {namespace}/{need.mapped.name}, which policy '{need.mapped.policy}' names for"
        f" {_asked(need)}, does not serve this pod: {why}.",
        "Ask the cluster's admins to change the template or the policy.",
        need.mapped.name,
    )


def unchecked(need: Need, namespace: str, why: str) -> Finding:
    """NEU230: nothing is known of the template."""
    return warning(
        "NEU230",
        _path(need),
        f"ResourceClaimTemplate {need.mapped.name}, which policy '{need.mapped.policy}' names for {_asked(need)}, was"
        f" not checked: {why}.",
        f"Pods wait until it exists in {f'namespace {namespace}' if namespace else 'their namespace'}.",
        need.mapped.name,
    )


def _path(need: Need) -> str:
    return next((ask.resource_path for ask in need.asks if ask.amount), "spec")


def _asked(need: Need) -> str:
    amount, in_cores = next(((ask.amount, ask.in_cores) for ask in need.asks if ask.amount), (0, False))
    return f"{amount} {'core' if in_cores else 'device'}{'' if amount == 1 else 's'}"


def judged(
    need: Need, namespace: str, spec: ClaimSpec, context: ClaimContext, clock: Clock | None = None
) -> Finding | None:
    """NEU121 if a template does not serve a pod. Pure; `clock` is as for `for_one_object`."""
    why = difference(need, spec, for_one_object(context, clock))
    return differs(need, namespace, why) if why else None
