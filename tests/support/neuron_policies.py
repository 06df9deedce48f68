"""Files with policies of this project."""

import json
from typing import Any


def neuron_policy(kind: str, name: str = "p", *, order: int = 1, **spec: Any) -> bytes:
    """A policy of a kind, with fields of its spec."""
    head = {"apiVersion": "policy.neuron.aws.com/v1alpha1", "kind": kind, "metadata": {"name": name}}
    return json.dumps({**head, "spec": {"order": order, **spec}}).encode()
