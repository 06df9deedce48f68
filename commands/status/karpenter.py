"""Says what the settings of a Karpenter in the cluster mean for pods with Neuron claims. Pure.

Source: Karpenter's chart, `settings.enableDRA` (alpha): it sets IGNORE_DRA_REQUESTS=false, and feature gates for the
drivers whose devices its provider of AWS describes. There is none for Neuron.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from commands.cluster.reader import Object, Seen, Unseen
from commands.status.lines import StatusCheck, StatusLine, listed
from neuron.api.fields import mapping, mappings, sequence, text
from runtime.text import cited, named

CHECK: Final = StatusCheck("Karpenter")
SELECTOR: Final = "app.kubernetes.io/name=karpenter"
"""Label of the Deployment in Karpenter's chart."""

_IGNORES: Final = ("IGNORE_DRA_REQUESTS", "--ignore-dra-requests")
_GATES: Final = ("FEATURE_GATES", "AWS_FEATURE_GATES")
_SERVES: Final = ("NEURON_DRA_KARPENTER_SERVES_CLAIMS", "--karpenter-serves-claims")
_SWITCH: Final = {"true": True, "1": True, "false": False, "0": False}
_LEFT: Final = "pods that only its dynamic pools can take keep their limits (NEU903)"
_ON: Final = "conversion.karpenterServesClaims"


def check(found: Seen[Object], webhook: Iterable[Mapping[str, object]]) -> Iterator[StatusLine]:
    """What each Karpenter does with pods that have claims. Says nothing of a cluster without Karpenter.

    Args:
        found: its Deployments.
        webhook: the Deployments of our webhook: whether they convert pods for Karpenter's nodes.
    """
    if isinstance(found, Unseen):
        yield CHECK.unseen(found)
        return
    serves = any(_switched(each, _SERVES) is True for each in webhook)
    for each in found:
        metadata = mapping(each.get("metadata"))
        name = f"{named(text(metadata.get('namespace')))}/{named(text(metadata.get('name')))}"
        yield _line(name, each, serves=serves)


def _line(name: str, deployment: Mapping[str, object], *, serves: bool) -> StatusLine:
    ignores = _switched(deployment, _IGNORES)
    if isinstance(ignores, str):
        why = f"IGNORE_DRA_REQUESTS of {name} is {ignores}: it is not known whether it ignores pods with claims."
        return CHECK.unknown(why)
    if ignores is not False:
        ignoring = f"{name} ignores pods with claims (IGNORE_DRA_REQUESTS, the default)"
        if not serves:
            return CHECK.well(f"{ignoring}: {_LEFT}.")
        why = f"{ignoring}, and pods are converted for its nodes ({_ON}): those that need a new node wait for ever."
        return CHECK.note(why, f"Set {_ON} to false.")
    gates = sorted({gate for each in _GATES for gate in _gates(_value(deployment, each))})
    described = f"with the gates {listed(map(named, gates))}" if gates else "without a gate for a driver"
    considering = f"{name} considers pods with claims (settings.enableDRA, {described})"
    if not serves:
        why = f"{considering}; AWS's provider describes no Neuron devices of nodes that do not exist, so {_LEFT}."
        return CHECK.note(why)
    why = f"{considering}, and pods are converted for its nodes ({_ON})."
    fix = "A release of AWS's provider starts no node for Neuron claims: keep this only for a build that does."
    return CHECK.note(why, fix)


def _containers(deployment: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    pod = mapping(mapping(mapping(deployment.get("spec")).get("template")).get("spec"))
    return mappings(pod.get("containers"))


def _value(deployment: Mapping[str, object], variable: str) -> str | None:
    """A variable of the containers; None if no container sets it, or its value comes from elsewhere."""
    entries = (entry for each in _containers(deployment) for entry in mappings(each.get("env")))
    return next((text(each.get("value")) for each in entries if each.get("name") == variable and "value" in each), None)


def _switched(deployment: Mapping[str, object], names: Sequence[str]) -> bool | str | None:
    """A switch by its flag, else by its variable; a text for a value that is no switch; None if it is not set."""
    variable, flag = names
    arguments = [
        str(argument)
        for each in _containers(deployment)
        for argument in (*sequence(each.get("command")), *sequence(each.get("args")))
    ]
    flags = [argument for argument in arguments if argument.partition("=")[0] == flag]
    value = (flags[-1].partition("=")[2] or "true") if flags else _value(deployment, variable)
    if value is None:
        entries = (entry for each in _containers(deployment) for entry in mappings(each.get("env")))
        elsewhere = any(each.get("name") == variable and each.get("valueFrom") for each in entries)
        return "set by another object" if elsewhere else None
    return _SWITCH.get(value.strip().lower(), cited(value, 63))


def _gates(value: str | None) -> Iterator[str]:
    """The gates for DRA that are on, of `A=true,B=false`."""
    for pair in (value or "").split(","):
        gate, _, given = pair.strip().partition("=")
        if "DRA" in gate and given.strip().lower() == "true":
            yield gate
