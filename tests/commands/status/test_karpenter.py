"""What `status` says of Karpenter's settings for pods with claims."""

from typing import Any

import pytest

from commands.cluster.reader import Unseen
from commands.status.nodes import check_karpenter

LEFT = "pods that only its dynamic pools can take keep their limits (NEU903)."
SERVES = {"spec": {"template": {"spec": {"containers": [{"args": ["--karpenter-serves-claims"]}]}}}}
CONVERTS = "and pods are converted for its nodes (conversion.karpenterServesClaims)"


def karpenter(*args: str, **env: Any) -> Any:
    entries = [
        {"name": name, **(value if isinstance(value, dict) else {"value": value})} for name, value in env.items()
    ]
    container = {"name": "controller", "args": list(args), "env": entries}
    metadata = {"name": "karpenter", "namespace": "kube-system"}
    return {"metadata": metadata, "spec": {"template": {"spec": {"containers": [container]}}}}


@pytest.mark.parametrize(
    ("deployment", "webhook", "said"),
    [
        pytest.param(
            karpenter(),
            (),
            ("well", f"kube-system/karpenter ignores pods with claims (IGNORE_DRA_REQUESTS, the default): {LEFT}", ""),
            id="default",
        ),
        pytest.param(
            karpenter(IGNORE_DRA_REQUESTS="true"),
            (SERVES,),
            (
                "note",
                "kube-system/karpenter ignores pods with claims (IGNORE_DRA_REQUESTS, the default), "
                f"{CONVERTS}: those that need a new node wait for ever.",
                "Set conversion.karpenterServesClaims to false.",
            ),
            id="ignores, and pods are converted",
        ),
        pytest.param(
            karpenter(IGNORE_DRA_REQUESTS="false", AWS_FEATURE_GATES="DRANVIDIAGPU=true,DRAEFA=true,Other=true"),
            (),
            (
                "note",
                "kube-system/karpenter considers pods with claims (settings.enableDRA, with the gates DRAEFA, "
                "DRANVIDIAGPU); AWS's provider describes no Neuron devices of nodes that do not exist, so "
                f"{LEFT}",
                "",
            ),
            id="enableDRA",
        ),
        pytest.param(
            karpenter("--ignore-dra-requests=false"),
            (SERVES,),
            (
                "note",
                "kube-system/karpenter considers pods with claims (settings.enableDRA, without a gate for a driver), "
                f"{CONVERTS}.",
                "A release of AWS's provider starts no node for Neuron claims: keep this only for a build that does.",
            ),
            id="flag, and pods are converted",
        ),
        pytest.param(
            karpenter(IGNORE_DRA_REQUESTS={"valueFrom": {"configMapKeyRef": {"name": "x", "key": "y"}}}),
            (),
            (
                "unknown",
                "IGNORE_DRA_REQUESTS of kube-system/karpenter is set by another object: it is not known whether it "
                "ignores pods with claims.",
                "",
            ),
            id="from a ConfigMap",
        ),
        pytest.param(
            karpenter(IGNORE_DRA_REQUESTS="perhaps"),
            (),
            (
                "unknown",
                "IGNORE_DRA_REQUESTS of kube-system/karpenter is 'perhaps': it is not known whether it ignores pods "
                "with claims.",
                "",
            ),
            id="no switch",
        ),
    ],
)
def test_the_settings_of_karpenter_are_explained(deployment: Any, webhook: Any, said: tuple[str, str, str]) -> None:
    [line] = check_karpenter((deployment,), webhook)
    assert (line.verdict.value, line.text, line.fix) == said


@pytest.mark.parametrize("spec", [None, [], {"template": None}, {"template": {"spec": {"containers": [None, 3]}}}])
def test_a_deployment_of_another_form_says_nothing(spec: Any) -> None:
    [line] = check_karpenter(({"metadata": {"name": "k", "namespace": "n"}, "spec": spec},), ())
    assert line.verdict == "well"


def test_a_cluster_without_karpenter_has_no_line() -> None:
    assert not list(check_karpenter((), ()))


def test_what_cannot_be_read_is_said() -> None:
    [line] = check_karpenter(Unseen("Deployments cannot be listed."), ())
    assert (line.verdict.value, line.text, line.fix) == ("unknown", "Deployments cannot be listed.", "")
