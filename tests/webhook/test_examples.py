"""Every folder of deploy/examples has the documented result."""

import dataclasses
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from commands.objects.manifests import manifests
from tests.support import forked
from tests.support.converting import documents

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "deploy" / "examples"


@dataclasses.dataclass(frozen=True)
class Facts:
    """What an example is about.

    Attributes:
        template: name of its template.
        counts: devices of each request.
        attributes: what its constraints match.
        config: parameters of its opaque config.
        claims: `resources.claims` by container.
    """

    template: str
    counts: list[int]
    attributes: list[str]
    claims: dict[str, list[str]]
    config: dict[str, Any] = dataclasses.field(default_factory=dict)


NEURON_CONFIG = {"apiVersion": "neuron.aws.com/v1", "kind": "NeuronConfig", "logicalNeuronCore": 1}
ULTRASERVER_CONFIG = {"apiVersion": "neuron.aws.com/v1", "kind": "UltraServerConfig", "ultraserverMode": 4}
FACTS = {
    "legacy-pod": Facts("neuron-4-fdc84041cb55", [4], ["devicegroup4_id"], {"train": ["neuron"]}),
    "mpi-worker-efa": Facts("neuron-16-bfb34049d9fa", [3] * 5 + [1], ["devicegroup16_id"], {"mpitest": ["neuron"]}),
    "four-connected-devices": Facts("neuron-4-fdc84041cb55", [4], ["devicegroup4_id"], {"vllm": ["neuron"]}),
    "single-device": Facts("neuron-1-bd1d3ece8d31", [1], [], {"embed": ["neuron"]}),
    "cores-on-trn2": Facts("neuron-2-cadf964334a6", [2], ["devicegroup4_id"], {"server": ["neuron"]}),
    "lnc-1": Facts("neuron-4-lnc1-7c602cec66d6", [4], ["devicegroup4_id"], {"server": ["neuron"]}, NEURON_CONFIG),
    "compile-init-container": Facts(
        "neuron-8-76b58b96e680", [8], ["devicegroup8_id"], {"compile": ["neuron"], "train": ["neuron"]}
    ),
    "two-containers": Facts(
        "neuron-8-1-a03794ee2127",
        [4, 4, 1],
        ["devicegroup8_id"],
        {"draft": ["neuron/n2"], "target": ["neuron/n0", "neuron/n1"]},
    ),
    "ultraserver-leaderworkerset": Facts(
        "neuron-us4-5cbb9d16e468", [1], [], {"worker": ["neuron"]}, ULTRASERVER_CONFIG
    ),
}
FAMILIES = "trn1,trn2,trn2u"
"""The families that the examples' commands name."""
REFUSED = {"seven-devices"}
CASES = sorted(folder.name for folder in EXAMPLES.iterdir() if folder.is_dir())
UNCHANGED = {"monitoring-daemonset", *(case for case in CASES if case.startswith("dra-"))}


def manifest_of(case: str) -> Path:
    (found,) = [file for file in (EXAMPLES / case).glob("*.yaml") if file.name != "expected.yaml"]
    return found.relative_to(ROOT)


def run_convert(path: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    command = ["convert", "--families", FAMILIES, "-f", str(path), *arguments]
    return forked.run("commands", command, cwd=ROOT, environment=os.environ)


def expected(case: str, name: str, default: bytes) -> bytes:
    file = EXAMPLES / case / name
    return file.read_bytes() if file.exists() else default


@pytest.mark.parametrize("case", CASES)
def test_converting_an_example_gives_its_expected_files(case: str) -> None:
    path = manifest_of(case)
    done = run_convert(path)
    assert done.stderr.decode() == expected(case, "expected.txt", b"").decode()
    assert done.stdout.decode() == expected(case, "expected.yaml", (ROOT / path).read_bytes()).decode()
    assert done.returncode == (case in REFUSED)


@pytest.mark.parametrize("case", FACTS)
def test_the_output_of_an_example_has_the_documented_feature(case: str) -> None:
    facts = FACTS[case]
    objects = [each for part in documents((EXAMPLES / case / "expected.yaml").read_bytes()) for each in manifests(part)]
    template, workload = objects
    assert template.name == facts.template
    devices = template.data["spec"]["spec"]["devices"]
    assert [request["exactly"]["count"] for request in devices["requests"]] == facts.counts
    matched = [
        constraint["matchAttribute"].removeprefix("resource.aws.com/") for constraint in devices.get("constraints", [])
    ]
    assert matched == facts.attributes
    assert [entry["opaque"]["parameters"] for entry in devices.get("config", [])] == [facts.config] * bool(facts.config)
    claims: dict[str, list[str]] = {}
    for _, pod in workload.pod_templates():
        for container in (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]):
            for entry in container.get("resources", {}).get("claims", ()):
                claims.setdefault(container["name"], []).append("/".join(entry.values()))
    assert claims == facts.claims


def test_every_other_example_is_refused_or_unchanged() -> None:
    assert {*CASES} - {*FACTS} == REFUSED | UNCHANGED


@pytest.mark.parametrize("case", sorted(UNCHANGED))
def test_an_example_for_dra_is_valid(case: str) -> None:
    done = forked.run("commands", ["validate", "-f", str(manifest_of(case))], cwd=ROOT, environment=os.environ)
    assert done.returncode == 0, done.stdout + done.stderr
    # A monitor gets devices that other claims hold, which is always reported.
    expected = ["NEU544"] if case == "monitoring-daemonset" else []
    assert re.findall("warning (NEU[0-9]+)", done.stdout.decode()) == expected


@pytest.mark.parametrize("case", CASES)
def test_a_readme_describes_its_example_and_the_commands_to_run_it(case: str) -> None:
    text = (EXAMPLES / case / "README.md").read_text()
    assert re.match(r"# .+\n\n", text)
    assert f"$ neuron-dra convert --families {FAMILIES} -f {manifest_of(case)}\n" in text
    facts = FACTS.get(case)
    for name in re.findall(r"neuron-[0-9a-z-]+-[0-9a-f]{12}", text):
        assert facts is not None
        assert name == facts.template


def test_the_index_lists_every_example() -> None:
    assert sorted(re.findall(r"\]\((.+)\)", (EXAMPLES / "README.md").read_text())) == CASES


def test_converting_a_converted_example_changes_nothing() -> None:
    for case in FACTS:
        done = run_convert((EXAMPLES / case / "expected.yaml").relative_to(ROOT), "-o", "diff")
        assert (done.returncode, done.stdout) == (0, b"")
