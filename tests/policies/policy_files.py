"""Policy files for tests: written as admins write them, and loaded from memory."""

import textwrap
from typing import Any

from kubecel_tests.evaluating import frozen_clock
from policies.files.folders import PolicyError
from policies.files.loader import load
from policies.judging.rules import PolicySet

POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "train", "namespace": "team-a", "labels": {"app": "train"}},
    "spec": {"containers": [{"name": "main", "resources": {"limits": {"aws.amazon.com/neuron": "4"}}}]},
}

POLICY = """
apiVersion: policy.neuron.aws.com/v1alpha1
kind: ValidatingPolicy
metadata:
  name: {name}
spec:
  matchConstraints:
    resourceRules:
    - {{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}}
"""


def policy(spec: str = "", name: str = "limits") -> str:
    """A ValidatingPolicy on the creation of pods, with more lines of its spec."""
    return POLICY.format(name=name) + textwrap.indent(textwrap.dedent(spec).strip("\n"), "  ") + "\n"


def loaded(*texts: str) -> PolicySet:
    """The set of these files, named 0.yaml, 1.yaml, …"""
    return load({f"{at}.yaml": text.encode() for at, text in enumerate(texts)}, clock=frozen_clock)


def problems(*texts: str) -> list[str]:
    """What is wrong with these files."""
    try:
        loaded(*texts)
    except PolicyError as error:
        return [str(problem) for problem in error.problems]
    return []
