"""Checks that the API server reaches the webhook: the result of a dry-run pod in, what lies between out."""

import re
from collections.abc import Iterator
from typing import Final

from cluster.resources import PODS
from commands.cluster.reader import items
from commands.status.lines import CheckResult, StatusLine
from commands.status.snapshot import NAME, StatusSnapshot
from neuron import names
from runtime.api_server import FORBIDDEN, StatusError, rule_text
from runtime.text import cited, named

CHECK: Final = "admission"

_FAILED: Final = re.compile(r'failed calling webhook "([^"]*)"')
"""k8s.io/apiserver/pkg/admission/plugin/webhook/errors: `ErrCallingWebhook`."""
_OURS: Final = f".{names.DRIVER}"

_BETWEEN: Final[tuple[tuple[re.Pattern[str], str, str], ...]] = (
    (
        re.compile(r"no endpoints available"),
        "no replica is ready",
        "kubectl -n {namespace} get pods -l app.kubernetes.io/component=webhook",
    ),
    (re.compile(r'service "[^"]*" not found'), "its Service does not exist", "Apply it as shipped."),
    (
        re.compile(r"x509:|tls: .*certificate|certificate signed by"),
        "the API server does not trust its certificate",
        "Compare the caBundle with the certificate: docs/certificates.md.",
    ),
    (
        re.compile(r"proxyconnect|Proxy Authentication|via proxy"),
        "a proxy lies between",
        "Put .svc into NO_PROXY of the API server.",
    ),
    (
        re.compile(r"connection refused|connection reset"),
        "the address is reached, and no replica listens on its port",
        "Compare the Service's targetPort with the chart's webhook.port, and read the log of the replicas.",
    ),
    (
        re.compile(r"Address is not allowed"),
        "the control plane does not call addresses outside its network, such as those of an overlay network",
        "Set the chart's value webhook.hostNetwork=true: docs/how-to/eks.md.",
    ),
    (
        re.compile(r"no route to host|network is unreachable"),
        "the control plane has no route to the addresses of the pods",
        "Set the chart's value webhook.hostNetwork=true: docs/how-to/eks.md.",
    ),
    (
        re.compile(r"i/o timeout|deadline exceeded|Client\.Timeout|TLS handshake timeout"),
        (
            "no answer arrives: a firewall (security group, NetworkPolicy) or an overlay network lies between, or no "
            "replica answers in time"
        ),
        (
            "Let the control plane reach port {port} of the nodes; with an overlay network, set the chart's value "
            "webhook.hostNetwork=true: docs/how-to/eks.md."
        ),
    ),
    (
        re.compile(r"unable to handle the request|Service Unavailable|status code 503"),
        "the webhook is reached and sheds load",
        "Read the metrics of the replicas: docs/operations.md.",
    ),
)
"""What the API server says, what lies between it and the webhook, and what to do. The first match counts."""


def check(snapshot: StatusSnapshot) -> Iterator[StatusLine]:
    """One line: whether the API server got the dry-run pod converted, else why not."""
    result, where = snapshot.probed, snapshot.probed_in
    if result is None:
        return
    if result.converted:
        text = f"the API server calls the webhook: a Neuron pod in namespace {named(where)} (dry run) is converted."
        yield StatusLine(CHECK, CheckResult.WELL, text)
    elif isinstance(result.error, StatusError):
        yield _refused(result.error, where, snapshot)
    elif result.error is not None:
        yield StatusLine(CHECK, CheckResult.UNKNOWN, f"no dry-run pod can be created: {cited(str(result.error))}.")
    else:
        fix = "The lines on webhooks, service and policies say more."
        yield StatusLine(CHECK, CheckResult.WRONG, f"{result.message.rstrip('.')}.", fix)


def _refused(error: StatusError, where: str, snapshot: StatusSnapshot) -> StatusLine:
    if error.code == FORBIDDEN and error.missing_right:
        text = f"you are not allowed to create {PODS} in namespace {named(where)}: no dry-run pod is asked for."
        fix = f"Add this rule to your Role or ClusterRole: {rule_text('', ('pods',), ('create',))}"
        return StatusLine(CHECK, CheckResult.UNKNOWN, text, fix)
    failed = _FAILED.search(error.message)
    if failed is None:
        text = f"a dry-run pod in namespace {named(where)} is not admitted: {cited(error.message)}."
        return StatusLine(CHECK, CheckResult.UNKNOWN, text, "Another rule of the cluster may refuse it.")
    if not failed[1].endswith(_OURS):
        text = f"the API server cannot call the webhook {named(failed[1])} of somebody else: {cited(error.message)}."
        return StatusLine(CHECK, CheckResult.UNKNOWN, text, "Mend that webhook first.")
    for pattern, cause, fix in _BETWEEN:
        if pattern.search(error.message):
            text = f"the API server cannot call the webhook: {cause}: {cited(error.message)}."
            return StatusLine(
                CHECK, CheckResult.WRONG, text, fix.format(namespace=snapshot.namespace, port=_port(snapshot))
            )
    text = f"the API server cannot call the webhook: {cited(error.message)}."
    return StatusLine(CHECK, CheckResult.WRONG, text, f"kubectl -n {snapshot.namespace} logs deployment/{NAME}")


def _port(snapshot: StatusSnapshot) -> str:
    """The port on which the replicas listen, by their Deployment."""
    for item in items(snapshot.deployments):
        if item["metadata"]["name"] == NAME and item["metadata"].get("namespace") == snapshot.namespace:
            for container in item["spec"]["template"]["spec"]["containers"]:
                for port in container.get("ports") or ():
                    if port.get("name") == "https":
                        return str(port["containerPort"])
    return "9443"
