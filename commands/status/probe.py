"""Tests the webhook end to end: creates a Neuron pod in a dry run and checks the answer.

This covers webhook configuration, Service, certificate and conversion. The pod requests conversion with an annotation,
so the result is the same in shadow mode. `neuron-dra probe` needs no more of `status`, whose snapshot takes 0.1 s to
import.
"""

import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from cluster.resources import PODS
from neuron import names
from runtime.api_server import ApiAnswerError, ApiServer, ApiServerError, StatusError, loaded_object

PAUSE: Final = 2.0
"""Seconds between two attempts."""

_TIMEOUT: Final = 35.0
"""Longer than 30 s, the longest time-out of a webhook in the API server."""
_NOT_CONVERTED: Final = (
    "the API server admitted the pod without conversion: the MutatingWebhookConfiguration neuron-dra is missing, "
    "leaves namespace {namespace} out, does not send the pod (changed rules or conditions) or was ignored because the "
    "webhook did not answer (failurePolicy Ignore), or a policy with locked: true keeps conversion off"
)


@dataclasses.dataclass(frozen=True, slots=True)
class ProbeResult:
    """The result of one attempt.

    Attributes:
        converted: whether the returned pod is converted.
        message: the template that the pod would use, or the error.
        passing: whether a retry may succeed.
        error: why the API server did not return a pod; None if it returned one.
    """

    converted: bool
    message: str
    passing: bool = False
    error: ApiServerError | None = dataclasses.field(default=None, compare=False)


def probe_pod(name: str = "neuron-dra-probe") -> dict[str, object]:
    """A pod that requests one device and complies with the Pod Security Standard `restricted`. It is not stored.

    Its node selector selects no node. Else the webhook would leave it as it is (NEU903) on clusters where only dynamic
    pools of Karpenter can take it, and the answer would not show whether the webhook is called.
    """
    security = {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    container = {
        "name": "probe",
        "image": "none",
        "resources": {"limits": {names.RESOURCE_NEURON: "1"}},
        "securityContext": security,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": {names.ANNOTATION_CONVERT: "convert"}},
        "spec": {
            "automountServiceAccountToken": False,
            "nodeSelector": {"neuron.aws.com/probe": "dry-run"},
            "containers": [container],
        },
    }


def namespace_of(mutating: Sequence[Mapping[str, Any]], namespaces: Sequence[Mapping[str, Any]]) -> str:
    """A namespace whose pods are sent to the webhook: `default`, or the first by name that the configuration has."""
    excluded = {
        value
        for item in mutating
        if item["metadata"]["name"] == names.MANAGER
        for entry in item.get("webhooks") or ()
        for rule in (entry.get("namespaceSelector") or {}).get("matchExpressions") or ()
        if rule.get("key") == "kubernetes.io/metadata.name" and rule.get("operator") == "NotIn"
        for value in rule.get("values") or ()
    }
    known = ["default", *sorted(str(each["metadata"]["name"]) for each in namespaces)]
    return next((each for each in known if each not in excluded), "default")


async def attempt(server: ApiServer, namespace: str) -> ProbeResult:
    """One attempt: create the pod in a dry run."""
    try:
        body = await server.request(
            "POST", PODS.path(namespace), timeout=_TIMEOUT, query={"dryRun": "All"}, body=probe_pod()
        )
        pod = loaded_object(body)
        labels = pod["metadata"].get("labels") or {}
        claims = pod["spec"].get("resourceClaims") or []
    except StatusError as error:
        # The ServiceAccount of a new namespace, or a new replica, may not be available yet.
        soon = error.passing or "error looking up service account" in error.message
        return ProbeResult(
            False, f"the API server did not admit the pod in namespace {namespace}: {error}", soon, error
        )
    except (ApiAnswerError, KeyError, TypeError, AttributeError):
        return ProbeResult(False, "the API server's answer is not a Pod", error=ApiAnswerError("it is not a Pod"))
    except ApiServerError as error:
        return ProbeResult(False, str(error), True, error)
    if names.LABEL_CONVERTED not in labels or not claims:
        return ProbeResult(False, _NOT_CONVERTED.format(namespace=namespace), True)
    return ProbeResult(True, str(claims[0].get("resourceClaimTemplateName", "")))


async def probe(
    server: ApiServer,
    namespace: str,
    timeout: float,  # noqa: ASYNC109 - spans several tries
    *,
    clock: Callable[[], float],
    sleep: Callable[[float], Awaitable[None]],
) -> ProbeResult:
    """Retry until the pod is converted, the answer is final, or `timeout` seconds have passed."""
    deadline = clock() + timeout
    while True:
        result = await attempt(server, namespace)
        if not result.passing or clock() + PAUSE > deadline:
            return result
        await sleep(PAUSE)
