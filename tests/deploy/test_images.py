"""The images: the Dockerfile without a builder, and the programs as installed from the wheel."""

import http.client
import importlib.metadata
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import time
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from dockerfile_parse import DockerfileParser
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.deploy.charts import EVERYTHING, pod_specs, render

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
PROGRAMS = Path(sys.executable).parent


# --- the Dockerfile -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stages() -> dict[str, list[tuple[str, str]]]:
    """Instructions of each stage; the first is FROM."""
    found: dict[str, list[tuple[str, str]]] = {}
    with DOCKERFILE.open("rb") as file:
        for each in DockerfileParser(fileobj=file).structure:
            if each["instruction"] == "FROM":
                current = found.setdefault(each["value"].rpartition(" AS ")[2], [])
            if each["instruction"] not in ("COMMENT", "ARG"):
                current.append((each["instruction"], each["value"]))
    return found


def values(stage: list[tuple[str, str]], instruction: str) -> list[str]:
    return [value for name, value in stage if name == instruction]


def test_hadolint_has_nothing_to_say() -> None:
    done = subprocess.run([PROGRAMS / "hadolint", DOCKERFILE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_every_stage_stands_on_the_one_base_that_can_be_pinned(stages: dict[str, list[tuple[str, str]]]) -> None:
    bases = {name: values(stage, "FROM")[0].partition(" AS ")[0] for name, stage in stages.items()}
    assert set(bases.values()) == {"${PYTHON_IMAGE}", "scratch", "runtime"}
    assert {name for name, base in bases.items() if base == "runtime"} == {"webhook", "kubelet-plugin"}
    assert "ARG PYTHON_IMAGE=" in DOCKERFILE.read_text()


def test_nothing_is_installed_that_is_not_locked(stages: dict[str, list[tuple[str, str]]]) -> None:
    runs = [run for stage in stages.values() for run in values(stage, "RUN")]
    installs = [line for run in runs for line in run.split("&&") if "pip install" in line]
    assert len(installs) == 4
    assert all("--require-hashes" in line or "--no-index --no-compile /dist/*.whl" in line for line in installs)
    assert "requirements/runtime.txt" in " ".join(values(stages["build"], "COPY"))


@pytest.mark.parametrize(
    ("stage", "user", "entry", "workload"),
    [
        ("webhook", "65532:65532", ["neuron-dra"], "Deployment/neuron-dra"),
        ("kubelet-plugin", "0:0", ["neuron-dra-kubelet-plugin"], "DaemonSet/neuron-dra-kubelet-plugin"),
    ],
)
def test_images_run_as_the_chart_runs_them(
    stages: dict[str, list[tuple[str, str]]], stage: str, user: str, entry: list[str], workload: str
) -> None:
    assert values(stages[stage], "USER") == [user]
    assert json.loads(values(stages[stage], "ENTRYPOINT")[0]) == entry
    spec = pod_specs(render())[workload]
    [container] = spec["containers"]
    assert container["command"][: len(entry)] == entry
    assert str(spec["securityContext"]["runAsUser"]) == user.partition(":")[0]
    exposed = set(values(stages[stage], "EXPOSE")[0].split())
    assert exposed == {str(port["containerPort"]) for port in container["ports"]}


def test_a_read_only_root_is_enough(stages: dict[str, list[tuple[str, str]]]) -> None:
    [environment] = values(stages["runtime"], "ENV")
    assert "PYTHONDONTWRITEBYTECODE=1" in environment
    assert "compileall" in values(stages["build"], "RUN")[-1]


def test_the_build_backend_is_taken_from_the_lock(stages: dict[str, list[tuple[str, str]]], tmp_path: Path) -> None:
    command = (
        values(stages["wheel"], "RUN")[0].partition("&&")[0].replace("requirements/build.txt", str(tmp_path / "b"))
    )
    subprocess.run(["sh", "-c", command], cwd=ROOT, check=True)
    pinned = re.findall(r"^(\S+)==", (tmp_path / "b").read_text(), re.MULTILINE)
    assert pinned == ["packaging", "setuptools", "wheel"]


def test_the_context_holds_what_is_built_and_nothing_else() -> None:
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]["include"]
    assert {package.rstrip("*") for package in packages} <= set(kept)
    assert [name for name in kept if not (ROOT / name).exists()] == []
    assert not {"tests", "deploy", ".git", ".venv"} & set(kept)


def test_the_images_can_be_built(tmp_path: Path) -> None:
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "info"], capture_output=True, check=False).returncode:
        pytest.skip("no docker engine here: the Dockerfile is only linted and read")
    for target in ("webhook", "kubelet-plugin", "sbom"):
        subprocess.run(
            [docker, "build", "-f", DOCKERFILE, "--target", target, "--output", f"type=local,dest={tmp_path}", ROOT],
            check=True,
        )
    assert json.loads((tmp_path / "sbom.cdx.json").read_text())["bomFormat"] == "CycloneDX"


def test_the_bill_of_materials_is_made_from_the_lock_without_a_network(tmp_path: Path) -> None:
    target = tmp_path / "sbom.json"
    lock = ROOT / "requirements" / "runtime.txt"
    command = [PROGRAMS / "cyclonedx-py", "requirements", "--pyproject", ROOT / "pyproject.toml"]
    command += ["--output-reproducible", "--of", "JSON", "-o", target, lock]
    nowhere = {**os.environ, "https_proxy": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9"}
    subprocess.run(command, check=True, capture_output=True, env=nowhere)
    made = json.loads(target.read_text())
    listed = {f"{each['name']}=={each['version']}" for each in made["components"]}
    assert listed == set(re.findall(r"^([^\s=]+==[^\s;]+)", lock.read_text(), re.MULTILINE))
    assert (made["metadata"]["component"]["name"], made["metadata"]["component"]["version"]) == ("neuron-dra", VERSION)


# --- the wheel ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built as in the Dockerfile: from the files of its context."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        name = line.removeprefix("!")
        if name == line or line.endswith(".txt"):
            continue
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--wheel-dir", out, source], check=True, capture_output=True)
    [made] = out.glob("*.whl")
    return made


def locked(lock: str) -> dict[str, tuple[Requirement, frozenset[str]]]:
    """Requirement and hashes by canonical name."""
    found = {}
    for entry in re.split(r"\n(?=\S)", (ROOT / "requirements" / lock).read_text().replace("\\\n", "").strip()):
        requirement = Requirement(entry.partition("--hash=")[0])
        found[canonicalize_name(requirement.name)] = requirement, frozenset(re.findall(r"--hash=(\S+)", entry))
    return found


@pytest.fixture(scope="module")
def programs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`bin` of a virtual environment with the wheel, and with exactly what requirements/runtime.txt installs here.

    Those packages are links to the ones of this environment: `make install` checked their hashes.
    """
    home = tmp_path_factory.mktemp("venv")
    venv.create(home, symlinks=True)
    [target] = home.glob("lib/python*/site-packages")
    for name, (requirement, _) in locked("runtime.txt").items():
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue
        distribution = importlib.metadata.distribution(name)
        assert distribution.version in requirement.specifier
        for file in distribution.files or ():
            if ".." not in file.parts:  # scripts
                (target / file).parent.mkdir(parents=True, exist_ok=True)
                (target / file).symlink_to(Path(str(file.locate())))
    # The wheel's own requirements are looked up among the installed packages only: a lock that lacks one fails here.
    pip = [sys.executable, "-m", "pip", "--python", home / "bin" / "python", "--quiet", "install", "--no-compile"]
    done = subprocess.run([*pip, "--no-index", wheel], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return home / "bin"


def run(programs: Path, *arguments: str | Path) -> str:
    # In another directory, so that no file of the checkout is found.
    done = subprocess.run(
        [programs / arguments[0], *arguments[1:]], capture_output=True, text=True, check=False, cwd=programs
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_has_the_packages_and_what_they_read(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {
        "certs",
        "kubecel",
        "kubeletplugin",
        "neuron",
        "policies",
        "runtime",
        "webhook",
    }
    for pattern in ("kubecel/*.json", "policies/packs/*.yaml", "policies/schemas/*.json"):
        shipped = {str(path.relative_to(ROOT)) for path in ROOT.glob(pattern)}
        assert shipped
        assert shipped <= set(names)


def test_what_runs_is_locked_as_what_is_developed_with() -> None:
    developed = locked("dev.txt")
    runtime = locked("runtime.txt")
    assert runtime
    assert {
        name: (str(requirement), hashes, str(developed[name][0]), developed[name][1])
        for name, (requirement, hashes) in runtime.items()
        if not hashes or (requirement.specifier, hashes) != (developed[name][0].specifier, developed[name][1])
    } == {}


@pytest.mark.timeout(300)
def test_both_programs_run_from_the_wheel_alone(programs: Path) -> None:
    assert run(programs, "neuron-dra", "--version") == f"neuron-dra {VERSION}\n"
    example = ROOT / "deploy" / "examples" / "legacy-pod" / "pod.yaml"
    converted = list(yaml.safe_load_all(run(programs, "neuron-dra", "convert", "-f", example)))
    assert {each["kind"] for each in converted} == {"Pod", "ResourceClaimTemplate"}
    [packs] = programs.parent.glob("lib/python*/site-packages/policies/packs")
    run(programs, "neuron-dra", "policy", "check", packs)
    assert "--emulate" in run(programs, "neuron-dra-kubelet-plugin", "--help")


@pytest.fixture
def server(programs: Path, tmp_path: Path) -> Iterator[tuple[str, int]]:
    """The standalone webhook from the wheel, which may write only to its directory."""
    argv = [programs / "neuron-dra", "webhook", "--standalone", "--port=0", "--metrics-port=0", "--log-format=json"]
    with (tmp_path / "log").open("wb") as log:
        child = subprocess.Popen([*argv, f"--tls-dir={tmp_path}"], cwd=tmp_path, stderr=log)
    try:
        deadline = time.monotonic() + 60
        while not (found := re.search(r"https://([\d.]+):(\d+)", (tmp_path / "log").read_text())):
            assert child.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < deadline, (tmp_path / "log").read_text()
            time.sleep(0.05)
        yield found[1], int(found[2])
    finally:
        child.terminate()
        assert child.wait(15) == 0


@pytest.mark.timeout(300)
def test_the_webhook_serves_from_the_wheel_alone(server: tuple[str, int], tmp_path: Path) -> None:
    context = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
    connection = http.client.HTTPSConnection(*server, timeout=10, context=context)
    connection.request("GET", "/readyz")
    answer: Any = connection.getresponse()
    assert answer.status == http.client.OK, answer.read()
    connection.close()


def test_what_runs_in_the_image_is_what_was_installed() -> None:
    commands = {spec["containers"][0]["command"][0] for spec in pod_specs(render(EVERYTHING)).values()}
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    # The names of the same program as a plugin of kubectl, for a workstation.
    assert commands == set(scripts) - {"kubectl-neuron", "kubectl_complete-neuron"}
