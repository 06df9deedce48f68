"""The catalogue of policy files, as the driver reads it: without CEL, whatever else the files say."""

import subprocess
import sys

import pytest

from neuron.hardware.instances import Topology
from policies.files.folders import PolicyError
from policies.files.reading import read_catalogue

HEAD = """\
apiVersion: policy.neuron.aws.com/v1alpha1
kind: InstanceTypeCatalog
metadata: {name: new}
spec:
  instanceTypes:
"""
TRN9 = HEAD + "  - {name: trn9.48xlarge, devices: 16, coresPerDevice: 8, deviceGroups: [2, 4]}\n"
BROKEN_POLICY = "apiVersion: policy.neuron.aws.com/v1alpha1\nkind: ValidatingPolicy\nspec: {no: such}\n"


def test_the_types_of_all_files_are_added_and_other_kinds_are_ignored() -> None:
    chain = HEAD.replace("new", "other") + "  - {name: inf9.large, devices: 6, topology: chain}\n"
    files = {"a.yaml": f"{BROKEN_POLICY}---\n{TRN9}", "b.yaml": chain, "c.yaml": "- not a policy\n"}
    found = read_catalogue({name: text.encode() for name, text in files.items()})
    trn9, inf9 = found.get("trn9.48xlarge"), found.get("inf9.large")
    assert trn9 is not None
    assert inf9 is not None
    assert (trn9.groups, trn9.cores_per_device, trn9.topology) == ((2, 4), 8, Topology.SWITCH)
    assert (inf9.consecutive, inf9.devices) == (True, 6)
    assert "trn1.32xlarge" in found
    assert read_catalogue({}).names() == tuple(
        name for name in found.names() if name not in ("trn9.48xlarge", "inf9.large")
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param(TRN9 + "  more: 1\n", "x.yaml:7: spec.more: unknown field.", id="field"),
        pytest.param("a: [", "x.yaml:1: this is not YAML: ", id="yaml"),
        pytest.param(
            HEAD + "  - {name: trn9.big, deviceGroups: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]}\n",
            "x.yaml:6: instance type trn9.big: deviceGroups has 13 sizes, but a device can publish 12.",
            id="too many groups",
        ),
        pytest.param(
            HEAD + "  - {name: trn9.big, devices: 33, ultraserverNodes: [1]}\n",
            "x.yaml:6: instance type trn9.big: ultraserverNodes needs a node of at most 32 devices, and this one has "
            "33: the driver could not publish the whole node.",
            id="too large a node",
        ),
        pytest.param(
            TRN9 + "  - {name: trn9.48xlarge, devices: 8}\n",
            "x.yaml:7: instance type trn9.48xlarge is already in x.yaml:6; keep one.",
            id="twice",
        ),
    ],
)
def test_problems_of_a_catalogue_are_reported_with_their_place(text: str, problem: str) -> None:
    with pytest.raises(PolicyError) as caught:
        read_catalogue({"x.yaml": text.encode()})
    assert str(caught.value).startswith(problem)


def test_reading_needs_no_cel() -> None:
    """The driver reads catalogues; it has no use for the CEL engine."""
    program = "import sys, policies.files.reading; print([n for n in sys.modules if n in ('kubecel', 'celpy', 'lark')])"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
