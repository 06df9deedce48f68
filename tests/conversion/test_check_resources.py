import time
from typing import Any

from conversion.findings.check_pods import misspelt_resources
from conversion.objects import pods
from neuron.findings import Severity
from tests.support.manifests import pod
from tests.support.timing import assert_below


def container_with(name: str = "main", **resources: Any) -> dict[str, Any]:
    return {"name": name, "resources": resources}


def found(*containers: dict[str, Any], init: tuple[dict[str, Any], ...] = (), known: tuple[str, ...] = ()) -> list[str]:
    view = pods.view(pod(*containers, initContainers=list(init)))
    return [f"{each.path} {each.message}" for each in misspelt_resources(view, known)]


def test_a_misspelt_resource_is_named_once_with_the_right_name() -> None:
    assert found(
        container_with(limits={"aws.amazon.com/neurons": 4}, requests={"aws.amazon.com/neurons": 4}),
        container_with("other", limits={"cpu": 1, "aws.amazon.com/neuron": 4}),
        init=(container_with("compile", requests={"neuron_core": 1}),),
    ) == [
        "spec.initContainers[0].resources.requests[neuron_core] container compile asks for 'neuron_core', which no"
        " Neuron device plugin offers. Did you mean 'aws.amazon.com/neuroncore'?",
        "spec.containers[0].resources.limits[aws.amazon.com/neurons] container main asks for 'aws.amazon.com/neurons',"
        " which no Neuron device plugin offers. Did you mean 'aws.amazon.com/neuron'?",
    ]


def test_a_misspelt_resource_is_a_warning() -> None:
    (finding,) = misspelt_resources(pods.view(pod(container_with(limits={"aws.amazon.com/neurons": 4}))))
    assert (finding.code, finding.severity) == ("NEU221", Severity.WARNING)


def test_the_extended_resource_of_a_device_class_has_no_finding() -> None:
    assert found(container_with(limits={"aws.amazon.com/neurons": 4}), known=("aws.amazon.com/neurons",)) == []


def test_many_names_take_little_time() -> None:
    many = [container_with(f"c{i}", limits={f"aws.amazon.com/neuronz{i}{j}": 1 for j in range(50)}) for i in range(100)]
    before = time.process_time()
    found(*many)
    assert_below(time.process_time() - before, 0.5)
