"""Every kubectl command that a message tells the user to run is one that the real kubectl and API server accept.

The commands are read from the code: the text of a message from `kubectl` on, with its placeholders. A new one fails
here until COMMANDS says what its placeholders stand for.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from neuron import names
from tests.cluster.api import Api
from tests.cluster.kubectl import Kubectl
from tests.cluster.manifests import container, generated_templates, pod, template_of
from tests.cluster.replicas import NAME

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = (
    *("webhook", "commands", "neuron", "policies", "kubeletplugin", "runtime", "certs", "conversion", "checks"),
    "cluster",
)
_COMMAND: Final = re.compile(r"\bkubectl (?:-n \S+ )?(?:annotate|create|delete|describe|get|logs|scale) [^;`)]*")

COMMANDS: Final = {
    "kubectl delete resourceclaimtemplate {template.name} -n {namespace}": "delete resourceclaimtemplate TEMPLATE",
    "kubectl create namespace {namespace}": "create namespace not-there --dry-run=server",
    "kubectl create secret generic {self.name} --namespace={self.namespace}": (
        "create secret generic neuron-dra-tls --dry-run=server"
    ),
    "kubectl -n {} get pods -l app.kubernetes.io/component=webhook": "get pods -l app.kubernetes.io/component=webhook",
    "kubectl -n {namespace} get pods -l app.kubernetes.io/component=webhook": (
        "get pods -l app.kubernetes.io/component=webhook"
    ),
    "kubectl -n {namespace} scale deployment {name} --replicas=2": (
        f"scale deployment {NAME} --replicas=2 --dry-run=server"
    ),
    "kubectl annotate namespace {facts.namespace} {names.ANNOTATION_CONVERT}=convert --overwrite": (
        f"annotate namespace NAMESPACE {names.ANNOTATION_CONVERT}=convert --overwrite --dry-run=server"
    ),
    "kubectl -n {facts.namespace} delete pod {facts.name} --force.": "delete pod waits --force --dry-run=server",
    "kubectl describe resourcequota": "describe resourcequota",
    "kubectl describe pod": "describe pod waits",
    "kubectl get nodes,resourceslices,resourceclaims,pods -A -o yaml": (
        "get nodes,resourceslices,resourceclaims,pods -A -o yaml"
    ),
    "kubectl get pods -A -o wide -l app.kubernetes.io/component=kubelet-plugin": (
        "get pods -A -o wide -l app.kubernetes.io/component=kubelet-plugin"
    ),
    "kubectl get pods -A -o wide -l app.kubernetes.io/component=kubelet-plugin --field-selector spec.nodeName={node}": (
        "get pods -A -o wide -l app.kubernetes.io/component=kubelet-plugin --field-selector spec.nodeName=node-1"
    ),
    "kubectl get resourceslices -o yaml": "get resourceslices -o yaml",
    "kubectl get resourceslices.": "get resourceslices",
}
"""Text in the code -> what is run in the test's namespace."""
ELSEWHERE: Final = {
    "kubectl delete mutatingwebhookconfiguration,validatingwebhookconfiguration {NAME}": "test_emergency.py runs it",
    "kubectl delete devicetaintrule {each}": "DeviceTaintRules are off by default in the versions under test",
    "kubectl delete resourceclaimtemplate neuron-4-0123456789ab -n team-a": "the example of the first of COMMANDS",
    "kubectl describe neuronultraserverworkload {name}": "a kind of AWS's operator",
    "kubectl describe workloads.{KUEUE_GROUP} {name}": "a kind of Kueue",
    "kubectl -n {snapshot.namespace} logs deployment/{NAME}": "needs a container that runs",
    "kubectl get … -o json": "stands for any such command",
    "kubectl get {word} -o yaml | neuron-dra explain -f -": "the word is the user's",
}
"""Text in the code -> why it is not run here."""


def _texts(tree: ast.Module) -> Iterator[str]:
    """The strings of a module that are not docstrings; placeholders stand in braces as they do in the code."""
    docstrings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    parts = {part for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            pieces = (
                str(part.value) if isinstance(part, ast.Constant) else f"{{{ast.unparse(part.value)}}}"
                for part in node.values
                if isinstance(part, ast.Constant | ast.FormattedValue)
            )
            yield "".join(pieces)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docstrings | parts:
            yield node.value


def printed() -> set[str]:
    """Every kubectl command in a message."""
    found: set[str] = set()
    for package in PACKAGES:
        for file in (ROOT / package).rglob("*.py"):
            for text in _texts(ast.parse(file.read_text())):
                found.update(each[0].strip() for each in _COMMAND.finditer(text))
    return found


def test_every_printed_command_is_run_here_or_has_a_reason() -> None:
    assert printed() == {*COMMANDS, *ELSEWHERE}


@pytest.mark.usefixtures("webhook")
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_a_printed_command_is_accepted(api: Api, kubectl: Kubectl, namespace: str, command: str) -> None:
    api.create(pod("waits", container(neuron=4)), namespace)
    [template] = generated_templates(api, namespace)
    labels = {"app": NAME}
    spec = {
        "replicas": 0,
        "selector": {"matchLabels": labels},
        "template": template_of(pod("replica", container()), labels),
    }
    api.create({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": NAME}, "spec": spec}, namespace)
    words = command.replace("TEMPLATE", template).replace("NAMESPACE", namespace).split()
    done = kubectl.run(*words)
    assert done.ok, done.stderr
