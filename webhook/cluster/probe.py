"""Whether the webhook answers: a Neuron pod is created in a dry run, and what comes back is looked at.

That goes the whole way: webhook configuration, Service, certificate, conversion, the ResourceClaimTemplate that would
be made. The pod's annotation asks for conversion, so the answer is the same while the cluster is still in shadow mode.
"""

import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any, Final

from neuron import names
from webhook.cluster.api import ApiAnswerError, ApiServer, ApiServerError, Resource, StatusError, loaded_object

PODS: Final = Resource("", "v1", "pods")
PAUSE: Final = 2.0
"""Seconds between two tries."""

_TIMEOUT: Final = 35.0
"""Longer than the 30 s that the API server gives a webhook at most."""
_NOT_CONVERTED: Final = (
    "the API server admitted the pod without conversion: the MutatingWebhookConfiguration neuron-dra is missing, "
    "leaves namespace {namespace} out or was ignored because the webhook did not answer (failurePolicy Ignore), or a "
    "policy with locked: true keeps conversion off"
)


@dataclasses.dataclass(frozen=True, slots=True)
class ProbeResult:
    """How a try ended.

    Attributes:
        converted: whether the pod came back converted.
        message: the template that it would use, or what is wrong.
        passing: whether another try may end better.
    """

    converted: bool
    message: str
    passing: bool = False


def probe_pod(name: str = "neuron-dra-probe") -> dict[str, Any]:
    """A pod that asks for one device, and that the Pod Security Standard `restricted` admits. It never runs."""
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
        "spec": {"automountServiceAccountToken": False, "containers": [container]},
    }


async def attempt(server: ApiServer, namespace: str) -> ProbeResult:
    """Create the pod in a dry run, once."""
    try:
        body = await server.request(
            "POST", PODS.path(namespace), timeout=_TIMEOUT, query={"dryRun": "All"}, body=probe_pod()
        )
        pod = loaded_object(body)
        labels = pod["metadata"].get("labels") or {}
        claims = pod["spec"].get("resourceClaims") or []
    except StatusError as error:
        # The ServiceAccount of a new namespace takes a moment, and so does a new replica.
        soon = error.passing or "error looking up service account" in error.message
        return ProbeResult(False, f"the API server did not admit the pod in namespace {namespace}: {error}", soon)
    except (ApiAnswerError, KeyError, TypeError, AttributeError):
        return ProbeResult(False, "the API server's answer is not a Pod")
    except ApiServerError as error:
        return ProbeResult(False, str(error), True)
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
    """Try until the pod comes back converted, the answer is final, or `timeout` seconds have passed."""
    deadline = clock() + timeout
    while True:
        outcome = await attempt(server, namespace)
        if not outcome.passing or clock() + PAUSE > deadline:
            return outcome
        await sleep(PAUSE)
