"""Decisions about objects of files, without their texts."""

import pytest

from commands.objects.decider import Decider
from commands.objects.manifests import Manifest, manifests_of
from conversion.asks.conversion_context import ConversionOptions
from neuron import names
from tests.attacks.worst_pods import counted_calls
from webhook.server.standalone import StandaloneBackend


def workflow(number: int, *, defaults: bool = False) -> Manifest:
    holder = {"image": "x", "resources": {"limits": {names.RESOURCE_NEURON: 1}}}
    templates = [{"name": f"t{at}", "container": holder} for at in range(number)]
    spec: dict[str, object] = {"entrypoint": "t0", "templates": templates}
    if defaults:
        spec["templateDefaults"] = {"container": holder}
    [made] = manifests_of(
        {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "metadata": {"name": "w"}, "spec": spec}
    )
    return made


def decider() -> Decider:
    return Decider(ConversionOptions(), StandaloneBackend().view)


def test_the_work_for_the_pods_of_a_workflow_grows_as_their_number() -> None:
    def calls(number: int) -> int:
        decides, manifest = decider(), workflow(number)
        decides.decide(workflow(1))
        return counted_calls(lambda: decides.decide(manifest))

    assert calls(800) < 2.5 * calls(400)


@pytest.mark.parametrize("number", [1, 12])
def test_only_what_no_pod_has_is_left(number: int) -> None:
    found = [each.path for each in decider().decide(workflow(number, defaults=True)).own if each.code == "NEU220"]
    assert found == ["spec.templateDefaults.container.resources"]
