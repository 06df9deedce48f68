"""`neuron-dra map`: a fake cluster and files, filters, formats, exit codes."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from commands.cli.main import main
from commands.cluster.reader import ClusterReader
from commands.cluster.snapshot import read_snapshot
from tests.commands.map.clusters import mixed
from tests.support.emulated import EmulatedCluster
from tests.support.fake_api import FakeApi, answer
from tests.support.invoking import invoke

KINDS = {
    "nodes": "Node",
    "slices": "ResourceSlice",
    "claims": "ResourceClaim",
    "pods": "Pod",
    "classes": "DeviceClass",
}

CATALOGUE = """\
apiVersion: policy.neuron.aws.com/v1alpha1
kind: InstanceTypeCatalog
metadata: {name: new}
spec:
  instanceTypes:
  - {name: inf9.24xlarge, devices: 6, topology: chain}
"""


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with FakeApi().serve_in_thread() as served:
        yield served


def run_map(api: FakeApi, tmp_path: Path, *arguments: str) -> Result:
    return invoke("map", f"--kubeconfig={api.kubeconfig(tmp_path)}", *arguments)


def as_list(cluster: EmulatedCluster) -> dict[str, Any]:
    """As `kubectl get nodes,resourceslices,… -o json` prints it."""
    items = [{"kind": kind, **item} for field, kind in KINDS.items() for item in getattr(cluster, field)]
    return {"apiVersion": "v1", "kind": "List", "items": items}


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(as_list(mixed())))
    return str(path)


def test_a_cluster_is_drawn(api: FakeApi, tmp_path: Path) -> None:
    mixed().put_into(api)
    result = run_map(api, tmp_path, "torus", "ring")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "┈[ 0 A ]──[ 1 A ]" in result.stdout
    assert "chain" not in result.stdout
    assert "\x1b" not in result.stdout


def test_a_file_shows_the_same_as_the_cluster(api: FakeApi, tmp_path: Path, file: str) -> None:
    mixed().put_into(api)
    for output in ("text", "wide", "drawing", "svg"):
        assert invoke("map", "-f", file, "-o", output).stdout == (run_map(api, tmp_path, "-o", output).stdout)


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["--type", "inf2"], ["ring"]),
        (["-n", "team-b"], ["torus"]),
        (["--claim", "train"], ["torus"]),
        (["--free", "6"], ["ring", "us-0"]),
        (["--attention"], ["chain", "ring"]),
        (["-l", "neuron.amazonaws.com/ultraserver-server-id-4"], ["us-0", "us-1"]),
        (["us-1", "chain"], ["chain", "us-1"]),
    ],
)
def test_options_choose_nodes(file: str, arguments: list[str], names: list[str]) -> None:
    result = invoke("map", "-f", file, "-o", "json", *arguments)
    assert [node["name"] for node in json.loads(result.stdout)["nodes"]] == names


def test_yaml_from_standard_input_is_read() -> None:
    cluster = EmulatedCluster()
    cluster.node("only")
    documents = yaml.safe_dump_all(as_list(cluster)["items"])
    result = invoke("map", "-f", "-", stdin=documents)
    assert "only  trn2.48xlarge, torus: 16 of 16 devices free" in result.stdout


def test_the_html_page_loads_no_other_resource(file: str) -> None:
    result = invoke("map", "-f", file, "-o", "html")
    assert result.stdout.startswith("<!DOCTYPE html>")
    assert "data-interval=" not in result.stdout.split("<script")[0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read {path}: No such file or directory"),
        ("a: [", "{path} is neither JSON nor YAML: "),
        ("", "{path} has no objects: write them with `kubectl get … -o json`"),
        ("[1, 2]", "{path} has no objects: "),
    ],
)
def test_a_file_that_has_no_objects_is_refused(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "file"
    if content is not None:
        path.write_text(content)
    result = invoke("map", "-f", path)
    assert result.exit_code == 2
    assert message.format(path=path) in result.stderr


def test_a_node_that_has_no_devices_is_named(file: str) -> None:
    result = invoke("map", "-f", file, "torus", "nowhere")
    assert (result.exit_code, result.stderr) == (
        2,
        "Error: no Neuron devices on nowhere: give names that `neuron-dra map -o wide` lists\n",
    )


def test_a_selector_that_cannot_be_read_is_a_usage_error(file: str) -> None:
    result = invoke("map", "-f", file, "-l", "a>1")
    assert result.exit_code == 2
    assert "Invalid value for '-l' / '--selector': 'a>1' is not a part of a label selector." in result.stderr


def test_files_are_not_served(file: str) -> None:
    result = invoke("map", "-f", file, "--serve")
    assert result.exit_code == 2
    assert "--serve reads a cluster: use -o html for a page of files." in result.stderr


def test_a_port_in_use_is_reported_in_one_line(api: FakeApi, tmp_path: Path) -> None:
    port = api.url.rpartition(":")[2]
    result = run_map(api, tmp_path, "--serve", f"--port={port}")
    assert result.exit_code == 2
    assert f"Error: Cannot listen on 127.0.0.1, port {port}: it is in use." in result.stderr


@pytest.mark.parametrize("arguments", [[], ["--serve", "--port=0"]])
def test_refused_credentials_are_reported_in_one_line(api: FakeApi, tmp_path: Path, arguments: list[str]) -> None:
    api.tokens = set()
    result = run_map(api, tmp_path, *arguments)
    assert result.exit_code == 2
    assert "cannot be read: the API server does not accept these credentials: renew them\n" in result.stderr


def test_the_map_reports_a_missing_permission_for_claims(api: FakeApi, tmp_path: Path) -> None:
    mixed().put_into(api)
    api.forbid("list", "resourceclaims", "resource.k8s.io")
    result = run_map(api, tmp_path, "torus")
    assert result.exit_code == 0
    assert result.stdout.startswith(
        "! You are not allowed to list resourceclaims.resource.k8s.io. Devices that claims hold are shown as free. Add "
        "this rule to your Role or ClusterRole: - {apiGroups: [resource.k8s.io], resources: [resourceclaims], verbs: "
    )


def test_a_cluster_without_dra_ends_with_2(api: FakeApi, tmp_path: Path) -> None:
    api.fault("list", "resourceslices", answer(404, "NotFound", "the server could not find the requested resource"))
    result = run_map(api, tmp_path)
    assert result.exit_code == 2
    assert "does not serve resource.k8s.io/v1: Kubernetes >= 1.34 is needed. No device can be shown." in result.stdout


def test_output_in_other_formats_is_utf_8_on_every_terminal(file: str) -> None:
    result = CliRunner(charset="ascii").invoke(main, ["map", "-f", file, "-o", "svg"])
    assert result.exit_code == 0
    assert "·" in result.stdout_bytes.decode("utf-8")


def test_policy_files_define_the_links_of_a_new_instance_type(tmp_path: Path) -> None:
    cluster = EmulatedCluster()
    cluster.node("new", "inf2.24xlarge")
    for device in cluster.slices[0]["spec"]["devices"]:
        device["attributes"]["instanceType"] = {"string": "inf9.24xlarge"}
    (tmp_path / "cluster.json").write_text(json.dumps(as_list(cluster)))
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "types.yaml").write_text(CATALOGUE)
    arguments = ["map", "-f", str(tmp_path / "cluster.json")]
    assert "inf9.24xlarge: 6 of 6 devices free" in invoke(*arguments).stdout
    known = invoke(*arguments, "--policies", tmp_path / "policies")
    assert "inf9.24xlarge, chain: 6 of 6 devices free" in known.stdout


@pytest.mark.parametrize("arguments", [["--type", "inf2"], ["torus"]])
def test_a_served_map_has_the_chosen_nodes_only(
    api: FakeApi, tmp_path: Path, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mixed().put_into(api)
    served: list[list[str]] = []

    async def run_once(connect: Any, chosen: Any, say: Any) -> None:
        del say
        async with connect() as server:
            found = chosen.draw(await read_snapshot(ClusterReader(server), server.address))
        served.append([node.name for node in found.nodes])

    monkeypatch.setattr("commands.map.serve.run", run_once)
    assert run_map(api, tmp_path, "--serve", *arguments).exit_code == 0
    assert served == [["ring"] if arguments[0] == "--type" else ["torus"]]
