"""`neuron-dra types` prints the catalogue, and what autoscalers need."""

import json
from pathlib import Path

import pytest
import yaml
from click.testing import Result

from tests.support.invoking import invoke


def run_types(*arguments: str) -> Result:
    return invoke("types", *arguments)


def test_all_types_are_printed_with_their_sources() -> None:
    result = run_types("-o", "wide")
    assert result.exit_code == 0
    assert "trn3e.24xlarge" in result.output
    assert "Sources, and how sure a figure is by them:" in result.output


def test_only_types_that_aws_offers() -> None:
    names = [each["name"] for each in json.loads(run_types("--offered", "-o", "json").output)]
    assert "trn3.48xlarge" in names
    assert not {"trn3-dev0.48xlarge", "trn2e.48xlarge", "trn3n.48xlarge"}.intersection(names)


@pytest.mark.parametrize(
    ("name", "hint"),
    [("trn2.49xlarge", " Did you mean 'trn2.48xlarge'?"), ("trn3sn.49xlarge", ""), ("trn9", ""), ("p5.48xlarge", "")],
)
def test_an_unknown_type_is_an_error(name: str, hint: str) -> None:
    result = run_types(name)
    assert result.exit_code == 2
    assert f"There is no instance type '{name}' in the catalogue.{hint}" in result.output
    assert "trn3sn.48xlarge" not in result.output


def test_a_family_stands_for_its_types() -> None:
    names = [each["name"] for each in json.loads(run_types("trn2", "inf1.xlarge", "-o", "json").output)]
    assert names == ["trn2.48xlarge", "trn2.3xlarge", "trn2e.48xlarge", "inf1.xlarge"]


def test_types_of_policy_files_name_them_as_source(tmp_path: Path) -> None:
    spec = "{instanceTypes: [{name: trn3n.48xlarge, devices: 16}]}"
    policy = "apiVersion: policy.neuron.aws.com/v1alpha1\nkind: InstanceTypeCatalog\nmetadata: {name: ours}\nspec: "
    (tmp_path / "types.yaml").write_text(f"{policy}{spec}\n")
    [entry] = json.loads(run_types("trn3n.48xlarge", "-o", "json", "--policies", str(tmp_path)).output)
    sources = {figure: each["source"] for figure, each in entry["sources"].items()}
    assert (entry["devices"], sources["devices"]) == (16, "an InstanceTypeCatalog of the policy files")
    assert "for the generation" in sources["memory"]


def test_slices_are_plain_yaml_of_one_node() -> None:
    result = run_types("trn2.48xlarge", "-o", "resourceslices", "--node", "a", "--kernel-driver", "2.31.7.0")
    [made] = yaml.safe_load_all(result.stdout)
    assert (made["kind"], made["spec"]["nodeName"], len(made["spec"]["devices"])) == ("ResourceSlice", "a", 16)
    assert made["spec"]["devices"][0]["attributes"]["neuronDriverVersion"] == {"string": "2.31.7.0"}
    assert "&id" not in result.stdout


def test_a_type_of_unknown_size_is_left_out_with_a_line() -> None:
    result = run_types("trn3n.48xlarge", "-o", "resourceslices")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "trn3n.48xlarge is left out: it is not known how many devices it has.\n"


def test_a_node_name_needs_one_type() -> None:
    result = run_types("-o", "resourceslices", "--node", "a")
    assert result.exit_code == 2
    assert "--node names one node: give one TYPE." in result.output


def test_annotations_say_which_counts_scale_from_zero() -> None:
    text = run_types("trn2.48xlarge", "inf2.xlarge", "-o", "cluster-autoscaler").output
    assert (
        "# trn2.48xlarge: a group without nodes starts one for pods with 1 device. For 4, 8, 16 devices, keep one node"
        " in the group.\n"
    ) in text
    assert "# inf2.xlarge: a group without nodes starts one for pods with 1 device.\n" in text
    counts = [
        each["metadata"]["annotations"]["capacity.cluster-autoscaler.kubernetes.io/gpu-count"]
        for each in yaml.safe_load_all(text)
    ]
    assert counts == ["16", "1"]


def test_karpenters_config_has_a_pool_for_each_type() -> None:
    [config] = yaml.safe_load_all(run_types("inf2.xlarge", "trn3e.24xlarge", "-o", "karpenter").output)
    assert [pool["name"] for pool in config["spec"]["pools"]] == ["trn3e-24xlarge", "inf2-xlarge"]
