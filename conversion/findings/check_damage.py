"""Finds pods that another webhook has damaged after their conversion. Pure.

It reads what the pod says of itself, without verification: it can only refuse or warn, and the fix is to remove the
label.
"""

from typing import Final

from conversion.asks import records
from conversion.asks.claimed import claimed
from conversion.asks.pod_demand import legacy_now
from conversion.claims import containers
from conversion.claims.containers import Role
from conversion.objects import pods
from neuron import names
from neuron.findings import Finding, warning

_SHOWN: Final = 40


def check_damage(pod: pods.Pod) -> list[Finding]:
    """NEU707: a converted pod has lost its claim or the reference to it.

    A webhook that decodes pods into an older API type and writes them back drops the fields that it does not know.
    """
    text = pod.annotations.converted_from
    if not pod.labelled or not text:
        return []
    record = records.decode(text)
    if record is None:
        message = (
            f"annotation {names.ANNOTATION_CONVERTED_FROM} is not readable: the pod is not taken for a converted one."
        )
        fix = f"Remove it and the label {names.LABEL_CONVERTED}; conversion writes them itself."
        return [
            warning("NEU211", f"metadata.annotations[{names.ANNOTATION_CONVERTED_FROM}]", message, fix, text[:_SHOWN])
        ]
    conversion = claimed(pod)
    findings = []
    for section, container, path in pod.sections():
        recorded = record.init_containers if section == "initContainers" else record.containers
        ask, _ = containers.read(container.name, Role.APP, path, recorded.get(container.name, {}), {})
        resources = container.decode_resources() or {}
        if not ask.amount or legacy_now(resources):
            continue
        refers = conversion is not None and any(
            each.get("name") == conversion.claim for each in resources.get("claims") or ()
        )
        if not refers:
            lost = "the reference to its claim" if conversion is not None else "the pod's claim"
            message = (
                f"container {container.name[:24]} was converted from {ask.resource}: {ask.amount}, but {lost} is gone."
            )
            fix = (
                "Another webhook dropped it: update that webhook, or let it run before this one. Where the label "
                f"{names.LABEL_CONVERTED} was copied from another pod, remove it."
            )
            findings.append(Finding("NEU707", f"{path}.resources.claims", message, fix, str(ask.amount)))
    return findings
