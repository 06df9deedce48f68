"""The API server stores generated templates as they are: its validation accepts them, and it drops and adds nothing."""

import json
from pathlib import Path
from typing import Any

import pytest

from conversion.claims.templates import digest
from tests.cluster.api import Api

CASES = Path(__file__).parents[1] / "golden" / "mutate"
TEMPLATES = {
    template["metadata"]["name"]: template
    for case in sorted(CASES.iterdir())
    for template in json.loads((case / "templates.json").read_text())
}


def _marked(name: str) -> Any:
    """A case; one with shares needs an API server that stores them."""
    return (
        pytest.param(name, marks=pytest.mark.needs("shares")) if '"capacity"' in json.dumps(TEMPLATES[name]) else name
    )


@pytest.mark.parametrize("name", [_marked(name) for name in sorted(TEMPLATES)])
def test_the_api_server_stores_a_generated_template_unchanged(api: Api, namespace: str, name: str) -> None:
    template: dict[str, Any] = json.loads(json.dumps(TEMPLATES[name]))
    template["metadata"] = {"name": name}
    stored = api.create(template, namespace).body
    assert digest(stored["spec"]) == digest(template["spec"])
    # A template that a policy carries has the name that the policy gives it.
    assert name.endswith(digest(stored["spec"])) or not name.startswith("neuron-")
