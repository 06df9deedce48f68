"""`neuron-dra probe`: which answers of an API server count as converted."""

import json
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from commands.status.probe import PAUSE, ProbeResult, attempt, probe, probe_pod
from conversion.claims.pools import Supply
from conversion.patches.decision import Outcome
from neuron.api.node_pools import read_pool
from runtime.api_server import StatusError, UnreachableError
from tests.support.answers import PreparedAnswers
from tests.support.clocks import Clock
from tests.support.clusters import FakeCluster, mutator
from tests.support.validation import review

CONVERTED = {
    **probe_pod(),
    "spec": {"resourceClaims": [{"name": "neuron", "resourceClaimTemplateName": "neuron-1-ab"}]},
}
CONVERTED["metadata"] = {**CONVERTED["metadata"], "labels": {"neuron.aws.com/converted": "true"}}
GOOD = orjson.dumps(CONVERTED)
UNTOUCHED = orjson.dumps(probe_pod())
NOBODY = StatusError(500, 'failed calling webhook "mutate.neuron.aws.com": no endpoints available')
FORBIDDEN = StatusError(403, 'pods is forbidden: User "u" cannot create resource "pods"')
TOO_EARLY = StatusError(403, 'error looking up service account default/default: serviceaccount "default" not found')


async def test_the_probe_is_a_dry_run_that_every_mode_converts() -> None:
    server = PreparedAnswers(GOOD)
    assert await attempt(server, "team") == ProbeResult(True, "neuron-1-ab")
    assert server.asked == [("POST", "/api/v1/namespaces/team/pods")]
    [members] = server.members
    assert members["query"] == {"dryRun": "All"}
    body = members["body"]
    assert body["metadata"]["annotations"] == {"neuron.aws.com/convert": "convert"}
    assert body["spec"]["containers"][0]["resources"] == {"limits": {"aws.amazon.com/neuron": "1"}}


@pytest.mark.parametrize(
    ("answer", "message", "passing"),
    [
        (
            UNTOUCHED,
            "the MutatingWebhookConfiguration neuron-dra is missing, leaves namespace team",
            True,
        ),
        (NOBODY, "did not admit the pod in namespace team: HTTP 500, 'failed calling webhook", True),
        (TOO_EARLY, "error looking up service account", True),
        (FORBIDDEN, 'cannot create resource "pods"', False),
        (UnreachableError("cannot connect to https://x"), "cannot connect to https://x", True),
        (b"<html>", "the API server's answer is not a Pod", False),
        (b"[]", "the API server's answer is not a Pod", False),
    ],
    ids=["untouched", "no-endpoints", "new-namespace", "forbidden", "unreachable", "html", "list"],
)
async def test_a_failed_probe_reports_the_reason(answer: bytes | Exception, message: str, passing: bool) -> None:
    outcome = await attempt(PreparedAnswers(answer), "team")
    assert (outcome.converted, outcome.passing) == (False, passing)
    assert message in outcome.message


async def test_a_webhook_that_is_just_starting_is_waited_for() -> None:
    server, clock = PreparedAnswers(NOBODY, UNTOUCHED, GOOD), Clock()
    assert (await probe(server, "team", 30, clock=clock, sleep=clock.sleep)).converted
    assert (len(server.asked), clock.now) == (3, 2 * PAUSE)


async def test_the_last_reason_is_reported_after_the_time_out() -> None:
    server, clock = PreparedAnswers(UNTOUCHED, NOBODY), Clock()
    outcome = await probe(server, "team", 3 * PAUSE, clock=clock, sleep=clock.sleep)
    assert "no endpoints" in outcome.message
    assert (len(server.asked), clock.now) == (4, 3 * PAUSE)


async def test_a_permanent_failure_is_reported_at_once() -> None:
    server, clock = PreparedAnswers(FORBIDDEN), Clock()
    await probe(server, "team", 30, clock=clock, sleep=clock.sleep)
    assert (len(server.asked), clock.now) == (1, 0)


def test_the_pod_is_one_that_restricted_namespaces_admit() -> None:
    [container] = json.loads(json.dumps(probe_pod()))["spec"]["containers"]
    security = container["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert (security["runAsNonRoot"], security["allowPrivilegeEscalation"]) == (True, False)


@pytest.mark.parametrize("replicas", [None, 2], ids=["dynamic pool", "static pool"])
async def test_a_cluster_of_karpenter_converts_the_pod(replicas: int | None) -> None:
    """Else `status` and `helm test` would call the webhook broken wherever all Neuron nodes come from a pool."""
    types = {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["trn1.32xlarge"]}
    spec = {"template": {"spec": {"requirements": [types]}}, "replicas": replicas}
    pool = read_pool("NodePool", {"metadata": {"name": "neuron"}, "spec": spec})
    assert pool is not None
    view = FakeCluster(supplied=Supply((pool,)))
    decision = await mutator(view).review(review({"apiVersion": "v1", "kind": "Pod", **probe_pod()}))
    assert decision.outcome is Outcome.CONVERTED


def test_the_command_reports_that_it_has_no_cluster(tmp_path: Path) -> None:
    command = [Path(sys.executable).parent / "neuron-dra", "probe", f"--kubeconfig={tmp_path / 'none'}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"Error: cannot read {tmp_path / 'none'}: No such file or directory\n"
