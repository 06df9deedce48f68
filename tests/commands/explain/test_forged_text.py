"""Text of the cluster that looks like advice of this program: it is shown as a quote with its source, or not at all."""

import json
import re
from typing import Any

import pytest

from commands.explain.diagnosis import prepare_failure
from commands.explain.explanation import Explanation
from neuron.codes import CODES
from runtime.console import Style
from tests.commands.explain.rendered import as_json, as_text
from tests.support.emulated import EmulatedCluster
from tests.support.explaining import Object, converted_pod, event, explained_pod, legacy_pod, live

EVIL = "NEU407: x. Fix: run kubectl create clusterrolebinding evil --clusterrole=cluster-admin"
RESULT = "Failed to prepare dynamic resources: NodePrepareResources failed for ResourceClaim train-claim: "
CONDITION = {"type": "PodScheduled", "status": "False", "reason": EVIL, "message": EVIL}


def outside_quotes(line: str) -> str:
    """The line without what stands between quotes; a quote begins after a space, a bracket or at the beginning."""
    return re.sub(r"""(?<![^\s(\[:,=/])(?P<mark>['"])(?:\\.|(?!(?P=mark)).)*(?P=mark)""", "''", line)


def check_quotes(explanation: Explanation) -> None:
    """The attacker's words are only between quotes, never in text or fix, and the quote has a source."""
    diagnosis = explanation.diagnosis
    assert diagnosis is not None
    assert "cluster-admin" not in outside_quotes(diagnosis.text)
    assert "cluster-admin" not in outside_quotes(diagnosis.fix)
    assert "what the message says" not in diagnosis.fix
    page = as_text([explanation], Style())
    for line in page.splitlines():
        assert "cluster-admin" not in outside_quotes(line), line
        assert not line.lstrip().startswith(("Fix:", "do        Fix"))
    [found] = json.loads(as_json([explanation]))
    told = found["diagnosis"]
    if told["quoted"] is not None:
        assert told["evidence"].startswith(told["quoted"]["source"] + ": ")
        assert told["quoted"]["source"]


def bound(**status: Any) -> tuple[Object, Any]:
    cluster = EmulatedCluster()
    cluster.node("a")
    found, own = converted_pod()
    found["status"] |= {"resourceClaimStatuses": [{"name": "neuron", "resourceClaimName": "train-claim"}], **status}
    found["spec"]["nodeName"] = "a"
    cluster.claim("train-claim", "a", range(4), pods=["train"])
    return found, live(cluster, [own])


@pytest.mark.parametrize(
    "message",
    [
        EVIL,
        f"{RESULT}{EVIL}",
        f"is not registered {EVIL}",
        f"strict decoding error {EVIL}",
        f"logicalNeuronCore {EVIL}",
        f"still prepared for {EVIL}",
        f"has vanished {EVIL}",
        f"connection refused {EVIL}",
        f"' {EVIL} \" '\n  do        {EVIL}",
    ],
)
@pytest.mark.parametrize("reason", ["FailedPrepareDynamicResources", "FailedMount", EVIL])
def test_a_forged_event(message: str, reason: str) -> None:
    found, around = bound()
    forged = event(reason, message)
    forged["metadata"]["name"] = forged["reportingComponent"] = forged["reportingInstance"] = EVIL
    check_quotes(explained_pod(found, around, [forged]))


@pytest.mark.parametrize("message", [EVIL, f"exceeded quota: {EVIL}", f"forbidden {EVIL}"])
def test_a_forged_event_about_the_claim(message: str) -> None:
    cluster = EmulatedCluster()
    cluster.node("a")
    found, own = converted_pod()
    check_quotes(explained_pod(found, live(cluster, [own]), [event("FailedResourceClaimCreation", message)]))


@pytest.mark.parametrize(
    "status",
    [
        {"phase": "Failed", "reason": EVIL, "message": EVIL},
        {"conditions": [{**CONDITION, "type": "DisruptionTarget", "status": "True", "reason": f"Taint {EVIL}"}]},
        {"containerStatuses": [{"name": EVIL, "state": {"waiting": {"reason": EVIL, "message": EVIL}}}]},
    ],
)
def test_a_forged_status(status: Object) -> None:
    check_quotes(explained_pod(*bound(**status)))


def test_a_forged_condition_of_the_claim() -> None:
    found, around = bound(containerStatuses=[{"name": "main", "state": {"running": {}}}])
    entry = {"device": EVIL, "conditions": [{**CONDITION, "type": "Healthy"}]}
    [claim] = (each for each in around.objects if each.kind == "ResourceClaim")
    claim.data["status"]["devices"] = [entry]
    check_quotes(explained_pod(found, around))


@pytest.mark.parametrize("driver", [True, False])
def test_a_forged_pod_that_is_not_scheduled(driver: bool) -> None:
    cluster = EmulatedCluster()
    cluster.node("a", driver=driver)
    found = legacy_pod(namespace="team-a", schedulerName=EVIL, nodeSelector={"x": EVIL})
    found["metadata"] |= {"uid": "u", "annotations": {"neuron.aws.com/convert": EVIL}}
    found["spec"]["containers"][0]["env"] = [{"name": EVIL, "value": EVIL}]
    for conditions in ([], [CONDITION]):
        status = {"phase": "Pending", "conditions": conditions}
        check_quotes(explained_pod({**found, "status": status}, live(cluster)))
    converted, own = converted_pod()
    converted["spec"]["schedulingGates"] = [{"name": EVIL}]
    check_quotes(explained_pod(converted, live(cluster, [own])))


@pytest.mark.parametrize("text", ["NEU999: x", "NEU4077: x", "xNEU407: x", "NEU407 x", "neu407: x"])
def test_only_codes_that_exist_are_recognised(text: str) -> None:
    found = prepare_failure(f"{RESULT}{text}", "a", publishes=True)
    assert found.case == "prepare-failed"
    assert "NEU" not in found.text


@pytest.mark.parametrize("code", ["NEU407", "NEU412", "NEU101"])
def test_a_code_is_explained_with_the_text_of_the_table(code: str) -> None:
    assert CODES[code].title in prepare_failure(f"{RESULT}{code}: do something bad", "a", publishes=True).text
