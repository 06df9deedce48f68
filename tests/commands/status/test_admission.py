"""The admission check: what the API server says of a dry-run pod, and what lies between it and the webhook."""

import pytest

from commands.status.lines import CheckResult, StatusLine
from commands.status.probe import ProbeResult, namespace_of
from runtime.api_server import ApiServerError, StatusError, UnreachableError
from tests.support.installation import configuration, deployment, named, said, well

CALL = 'Internal error occurred: failed calling webhook "mutate.neuron.aws.com": failed to call webhook: '
POST = f'{CALL}Post "https://neuron-dra.neuron-dra.svc:443/mutate?timeout=5s": '


def line(error: ApiServerError | None, message: str = "no", port: int = 9443, name: str = "neuron-dra") -> StatusLine:
    made = deployment()
    made["metadata"]["name"] = name
    [container] = made["spec"]["template"]["spec"]["containers"]
    container["ports"] = [{"name": "https", "containerPort": port}]
    [found] = said(well(probed=ProbeResult(False, message, error=error), deployments=(made,)))
    assert found.check == "admission"
    return found


@pytest.mark.parametrize(
    ("answer", "cause", "fix"),
    [
        pytest.param(f"{POST}context deadline exceeded", "overlay network lies between", "port 10260", id="no answer"),
        pytest.param(f"{POST}dial tcp 10.0.1.2:9443: i/o timeout", "overlay network lies", "port 10260", id="time-out"),
        pytest.param(f"{POST}Address is not allowed", "outside its network", "hostNetwork=true", id="EKS"),
        pytest.param(
            f"{POST}dial tcp 192.168.0.9:9443: connect: no route to host", "no route", "hostNetwork=true", id="route"
        ),
        pytest.param(
            f"{POST}dial tcp 10.0.1.2:9443: connect: connection refused", "no replica listens", "targetPort", id="port"
        ),
        pytest.param(
            f'{CALL}no endpoints available for service "neuron-dra"', "no replica is ready", "get pods", id="endpoints"
        ),
        pytest.param(f'{CALL}service "neuron-dra" not found', "its Service does not exist", "shipped", id="Service"),
        pytest.param(
            f"{POST}tls: failed to verify certificate: x509: certificate signed by unknown authority",
            "does not trust its certificate",
            "caBundle",
            id="certificate",
        ),
        pytest.param(f"{POST}proxyconnect tcp: dial tcp: i/o timeout", "a proxy lies between", "NO_PROXY", id="proxy"),
        pytest.param(
            f"{CALL}the server is currently unable to handle the request", "sheds load", "metrics", id="overload"
        ),
        pytest.param(f"{POST}EOF", "cannot call the webhook", "logs deployment/neuron-dra", id="anything else"),
    ],
)
def test_what_lies_between_is_named(answer: str, cause: str, fix: str) -> None:
    found = line(StatusError(500, answer), port=10260)
    assert found.verdict is CheckResult.WRONG
    assert cause in found.text
    assert fix in found.fix


def test_the_port_is_that_of_the_deployment_with_the_labels_of_the_webhook() -> None:
    assert "port 10260" in line(StatusError(500, f"{POST}context deadline exceeded"), port=10260, name="dra").fix


UNKNOWN: dict[str, ApiServerError] = {
    "you are not allowed to create pods": StatusError(
        403, 'pods is forbidden: User "eve" cannot create resource "pods" in API group "" in the namespace'
    ),
    "a dry-run pod in namespace default is not admitted: ": StatusError(403, "pods is forbidden: exceeded quota: all"),
    "of somebody else": StatusError(500, 'failed calling webhook "istio.example.com": EOF'),
    "no dry-run pod can be created: ": UnreachableError("it is gone"),
}


@pytest.mark.parametrize(("text", "error"), UNKNOWN.items(), ids=UNKNOWN)
def test_what_says_nothing_of_the_webhook_is_unknown(error: ApiServerError, text: str) -> None:
    found = line(error)
    assert found.verdict is CheckResult.UNKNOWN
    assert text in found.text


def test_a_pod_that_comes_back_as_it_was_is_wrong() -> None:
    found = line(None, "the API server admitted the pod without conversion")
    assert (found.verdict, found.text) == (CheckResult.WRONG, "the API server admitted the pod without conversion.")


def test_a_converted_pod_is_well() -> None:
    snapshot = well(probed=ProbeResult(True, "neuron-1-ab"), probed_in="team-a")
    assert said(snapshot) == []
    assert [each.text for each in said(snapshot, CheckResult.WELL) if each.check == "admission"] == [
        "the API server calls the webhook: a Neuron pod in namespace team-a (dry run) is converted."
    ]


@pytest.mark.parametrize(
    ("excluded", "chosen"),
    [(["kube-system"], "default"), (["default", "a"], "b"), (["default", "a", "b"], "default")],
    ids=["default", "the next", "none left"],
)
def test_the_pod_is_tried_where_the_webhook_is_called(excluded: list[str], chosen: str) -> None:
    made = configuration("MutatingWebhookConfiguration")
    expression = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": excluded}
    for entry in made["webhooks"]:
        entry["namespaceSelector"] = {"matchExpressions": [expression]}
    assert namespace_of((made,), (named("b"), named("a"))) == chosen
