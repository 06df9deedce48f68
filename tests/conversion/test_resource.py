"""The legacy resource that a decision is about: what conversions are counted by."""

import asyncio
from typing import Any

import pytest

from conversion.asks.pod_demand import SEVERAL
from neuron.findings import Finding
from tests.support.clusters import FakeTemplates, mutator, request
from tests.support.manifests import CORE, NEURON, container, pod
from webhook.reviews.reviewer import TemplateUnavailableError

SHADOW = {"neuron.aws.com/convert": "shadow"}
OFF = {"neuron.aws.com/convert": "off"}


@pytest.mark.parametrize(
    ("manifest", "outcome", "resource"),
    [
        pytest.param(pod(container(neuron=4)), "converted", NEURON, id="converted"),
        pytest.param(pod(container(neuron=7)), "denied", NEURON, id="refused"),
        pytest.param(pod(container(neuron="x")), "denied", NEURON, id="no number"),
        pytest.param(pod(container(neuroncore=2), annotations=SHADOW), "shadowed", CORE, id="shadow"),
        pytest.param(pod(container(neuroncore=2), annotations=OFF), "unchanged", CORE, id="off"),
        pytest.param(pod(container(neuron=4), nodeName="n"), "unchanged", NEURON, id="bound"),
        pytest.param(pod(container("a", neuron=4), container("b", neuroncore=2)), "converted", SEVERAL, id="both"),
        pytest.param(pod(container()), "unchanged", "", id="none"),
    ],
)
def test_a_decision_has_the_resource_of_the_request(manifest: Any, outcome: str, resource: str) -> None:
    decision = asyncio.run(mutator().review(request(manifest)))
    assert (decision.outcome.value, decision.resource) == (outcome, resource)


@pytest.mark.parametrize("on_template_failure", ["deny", "admit"])
def test_a_decision_without_its_template_has_the_resource_of_the_request(on_template_failure: str) -> None:
    templates = FakeTemplates(TemplateUnavailableError(Finding("NEU302", "", "unreachable"), 503, "ServiceUnavailable"))
    reviewing = mutator(None, templates, on_template_failure=on_template_failure)
    decision = asyncio.run(reviewing.review(request(pod(container(neuron=4)))))
    assert (decision.reason, decision.resource) == ("template-unavailable", NEURON)
