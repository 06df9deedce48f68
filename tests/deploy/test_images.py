"""The images: the Dockerfile without a builder, and the programs as installed from the wheel."""

import http.client
import http.server
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import threading
import time
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from dockerfile_parse import DockerfileParser

from tests.deploy.charts import EVERYTHING, pod_specs, render
from tests.deploy.environments import locked, make_environment
from tests.support.collector import Receiver
from tests.support.serving import eventually, review

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
SLIM = ROOT / "deploy" / "slim-venv.sh"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
PROGRAMS = Path(sys.executable).parent
IMAGES = ("webhook", "kubelet-plugin")
"""Also the names of the extras, the locks and the stages."""


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


def test_hadolint_reports_no_problem() -> None:
    done = subprocess.run([PROGRAMS / "hadolint", DOCKERFILE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_every_stage_uses_the_same_base_image(stages: dict[str, list[tuple[str, str]]]) -> None:
    bases = {name: values(stage, "FROM")[0].partition(" AS ")[0] for name, stage in stages.items()}
    assert set(bases.values()) == {"${PYTHON_IMAGE}", "scratch", "venv", "sbom-tool", "runtime"}
    assert {name for name, base in bases.items() if base == "runtime"} == set(IMAGES)
    assert "ARG PYTHON_IMAGE=" in DOCKERFILE.read_text()


def test_only_locked_packages_are_installed(stages: dict[str, list[tuple[str, str]]]) -> None:
    runs = [run for stage in stages.values() for run in values(stage, "RUN")]
    installs = [line for run in runs for line in run.split("&&") if "pip install" in line]
    assert len(installs) == 6
    own = {
        "webhook": "--no-deps --no-index /dist/*.whl",
        "kubelet-plugin": "--no-deps --no-index /dist/neuron_dra-*.whl",
    }
    assert all("--require-hashes" in line or any(each in line for each in own.values()) for line in installs)
    for image in IMAGES:
        assert values(stages[f"{image}-venv"], "COPY") == [f"requirements/{image}.txt /requirements.txt"]
        assert own[image] in values(stages[f"{image}-venv"], "RUN")[0]
        assert f"/slim-venv.sh /opt/neuron-dra {image} " in values(stages[f"{image}-venv"], "RUN")[0]
        assert f"--from={image}-venv /opt/neuron-dra /opt/neuron-dra" in values(stages[image], "COPY")


@pytest.mark.parametrize(
    ("stage", "user", "entry", "command", "workload"),
    [
        # The Deployment runs the service without the commands.
        ("webhook", "65532:65532", "neuron-dra", "neuron-dra-webhook", "Deployment/neuron-dra"),
        (
            "kubelet-plugin",
            "0:0",
            "neuron-dra-kubelet-plugin",
            "neuron-dra-kubelet-plugin",
            "DaemonSet/neuron-dra-kubelet-plugin",
        ),
    ],
)
def test_images_run_as_the_chart_runs_them(
    stages: dict[str, list[tuple[str, str]]], stage: str, user: str, entry: str, command: str, workload: str
) -> None:
    assert values(stages[stage], "USER") == [user]
    assert json.loads(values(stages[stage], "ENTRYPOINT")[0]) == [entry]
    spec = pod_specs(render())[workload]
    [container] = spec["containers"]
    assert container["command"][0] == command
    assert str(spec["securityContext"]["runAsUser"]) == user.partition(":")[0]
    exposed = set(values(stages[stage], "EXPOSE")[0].split())
    assert exposed == {str(port["containerPort"]) for port in container["ports"]}


def test_images_are_prepared_for_a_read_only_root(stages: dict[str, list[tuple[str, str]]]) -> None:
    [environment] = values(stages["runtime"], "ENV")
    assert "PYTHONDONTWRITEBYTECODE=1" in environment
    for image in IMAGES:
        assert "compileall" in values(stages[f"{image}-venv"], "RUN")[-1]


def test_the_build_backend_is_taken_from_the_lock(stages: dict[str, list[tuple[str, str]]], tmp_path: Path) -> None:
    command = (
        values(stages["wheel"], "RUN")[0].partition("&&")[0].replace("requirements/build.txt", str(tmp_path / "b"))
    )
    subprocess.run(["sh", "-c", command], cwd=ROOT, check=True)
    pinned = re.findall(r"^(\S+)==", (tmp_path / "b").read_text(), re.MULTILINE)
    assert pinned == ["packaging", "setuptools", "wheel"]


def test_the_build_context_has_only_the_built_files() -> None:
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]["include"]
    assert {"kubecel", *(package.rstrip("*") for package in packages)} <= set(kept)
    assert [name for name in kept if not (ROOT / name).exists()] == []
    assert not {"tests", "deploy", ".git", ".venv"} & set(kept)


def test_the_images_can_be_built(tmp_path: Path) -> None:
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "info"], capture_output=True, check=False).returncode:
        pytest.skip("no docker engine here: the Dockerfile is only linted and read")
    for target in (*IMAGES, "sbom"):
        subprocess.run(
            [docker, "build", "-f", DOCKERFILE, "--target", target, "--output", f"type=local,dest={tmp_path}", ROOT],
            check=True,
        )
    for image in IMAGES:
        assert json.loads((tmp_path / f"sbom-{image}.cdx.json").read_text())["bomFormat"] == "CycloneDX"


# --- the wheel ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both wheels, built as in the Dockerfile: from the files of its context."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        name = line.removeprefix("!")
        if name == line or line.endswith((".txt", ".sh")):
            continue
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--wheel-dir", out, source / "kubecel", source], check=True, capture_output=True)
    return out


def make_programs(home: Path, wheels: Path, image: str) -> Path:
    """`bin` of an environment with the wheels, made slim for an image."""
    programs = make_environment(home, wheels, image)
    done = subprocess.run([SLIM, home, image], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return programs


@pytest.fixture(scope="module")
def webhook_programs(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_programs(tmp_path_factory.mktemp("webhook"), wheels, "webhook")


@pytest.fixture(scope="module")
def plugin_programs(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_programs(tmp_path_factory.mktemp("kubelet-plugin"), wheels, "kubelet-plugin")


ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
"""Without a path of modules, so that no file of the checkout is found."""


def run(programs: Path, *arguments: str | Path) -> str:
    command = [programs / arguments[0], *arguments[1:]]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=programs, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def contents(wheels: Path, name: str) -> list[str]:
    [wheel] = wheels.glob(f"{name}-*.whl")
    return zipfile.ZipFile(wheel).namelist()


def packages_in(names: list[str]) -> set[str]:
    return {name.partition("/")[0] for name in names if ".dist-info/" not in name}


def shipped(root: Path, *patterns: str) -> set[str]:
    found = [{str(path.relative_to(root)) for path in root.glob(pattern)} for pattern in patterns]
    assert all(found)
    return set().union(*found)


def test_the_wheels_have_the_packages_and_their_data_files(wheels: Path) -> None:
    own = contents(wheels, "kubecel")
    assert packages_in(own) == {"kubecel"}
    assert shipped(ROOT / "kubecel", "kubecel/**/*.py", "kubecel/*.json", "kubecel/py.typed") <= set(own)
    names = contents(wheels, "neuron_dra")
    assert packages_in(names) == {
        "certs",
        "checks",
        "cluster",
        "conversion",
        "commands",
        "kubeletplugin",
        "neuron",
        "policies",
        "runtime",
        "webhook",
    }
    assert shipped(ROOT, "policies/packs/*.yaml", "policies/schemas/*.json") <= set(names)


@pytest.mark.parametrize("image", IMAGES)
def test_run_time_locks_equal_the_development_lock(image: str) -> None:
    developed = locked("dev.txt")
    runtime = locked(f"{image}.txt")
    assert runtime
    assert {
        name: (str(requirement), hashes, str(developed[name][0]), developed[name][1])
        for name, (requirement, hashes) in runtime.items()
        if not hashes or (requirement.specifier, hashes) != (developed[name][0].specifier, developed[name][1])
    } == {}


def test_no_image_has_packages_that_only_the_other_imports() -> None:
    webhook, plugin = (set(locked(f"{image}.txt")) for image in IMAGES)
    assert plugin - webhook == {"grpcio"}
    assert {"cel-python", "lark", "google-re2", "starlette", "uvicorn", "cryptography"} <= webhook - plugin


IMPORT_ALL = """
import importlib, importlib.util, pkgutil, sys
for package in sys.argv[1].split():
    for module in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
        if module.name not in sys.argv[3:]:
            importlib.import_module(module.name)
print([name for name in sys.argv[2].split() if importlib.util.find_spec(name)])
"""


def test_the_webhook_runs_from_the_wheel_alone(webhook_programs: Path) -> None:
    packages, others = (
        "webhook commands policies cluster conversion checks kubecel neuron certs runtime",
        "kubeletplugin grpc",
    )
    of_driver = ("commands.types",)  # Imported with the driver's code only.
    assert run(webhook_programs, "python", "-c", IMPORT_ALL, packages, others, *of_driver) == "[]\n"
    types = [webhook_programs / "neuron-dra", "types", "-o", "resourceslices", "trn2.48xlarge"]
    refused = subprocess.run(types, capture_output=True, text=True, check=False, cwd=webhook_programs, env=ENVIRONMENT)
    assert (refused.returncode, "the code of the driver" in refused.stderr) == (2, True)
    assert run(webhook_programs, "neuron-dra", "--version") == f"neuron-dra {VERSION}\n"
    example = ROOT / "deploy" / "examples" / "legacy-pod" / "pod.yaml"
    converted = list(yaml.safe_load_all(run(webhook_programs, "neuron-dra", "convert", "-f", example)))
    assert {each["kind"] for each in converted} == {"Pod", "ResourceClaimTemplate"}
    [packs] = webhook_programs.parent.glob("lib/python*/site-packages/policies/packs")
    run(webhook_programs, "neuron-dra", "policy", "check", packs)


def test_the_driver_runs_from_the_wheel_alone(plugin_programs: Path) -> None:
    ours = "webhook commands cluster.store conversion checks kubecel certs"
    others = f"{ours} celpy lark re2 starlette uvicorn uvloop cryptography jsonpatch"
    assert run(plugin_programs, "python", "-c", IMPORT_ALL, "kubeletplugin", others) == "[]\n"
    assert run(plugin_programs, "neuron-dra-kubelet-plugin", "--version").endswith(f" {VERSION}\n")
    assert "--emulate" in run(plugin_programs, "neuron-dra-kubelet-plugin", "--help")
    assert {each.name for each in plugin_programs.glob("*neuron*")} == {"neuron-dra-kubelet-plugin"}


ASK = """
import asyncio, json, pathlib, sys
from runtime.api_transport import Connection, load_configuration
async def ask():
    connection = await Connection.open(lambda: load_configuration(pathlib.Path(sys.argv[1])))
    body = {"metadata": {"name": "p"}}
    print(json.loads(await connection.request("POST", "/api/v1/pods", timeout=10, body=body))["metadata"]["name"])
    async with connection.stream("/api/v1/pods", query={"watch": "true"}, stall=10) as pieces:
        print(b"".join([piece async for piece in pieces]).decode())
    await connection.close()
asyncio.run(ask())
"""


class Echo(http.server.BaseHTTPRequestHandler):
    """Answers a request with its body, or with its path."""

    def do_POST(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        assert self.headers["Authorization"] == "Bearer secret"
        body = self.rfile.read(int(self.headers.get("Content-Length", "0"))) or self.path.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the parameter's name in the base class
        pass


@pytest.mark.parametrize("image", IMAGES)
def test_the_client_works_without_its_generated_classes(
    image: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    programs: Path = request.getfixturevalue({"webhook": "webhook_programs"}.get(image, "plugin_programs"))
    generated = [
        each
        for folder in ("client", "aio/client")
        for part in ("api", "models")
        for each in programs.parent.glob(f"lib/python*/site-packages/kubernetes/{folder}/{part}/*")
    ]
    assert {each.name for each in generated} == {"__init__.py"}
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        threading.Thread(target=server.serve_forever).start()
        config = {
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
            "users": [{"name": "u", "user": {"token": "secret"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        (tmp_path / "kubeconfig").write_text(json.dumps(config))
        try:
            said = run(programs, "python", "-c", ASK, tmp_path / "kubeconfig")
        finally:
            server.shutdown()
    assert said == "p\n/api/v1/pods?watch=true\n"


@pytest.mark.parametrize(
    ("installed", "command", "extra"),
    [
        ("plugin_programs", ("webhook", "webhook"), "webhook"),
        ("webhook_programs", ("kubeletplugin", "--node-name=n"), "kubelet-plugin"),
    ],
    ids=IMAGES,
)
def test_a_program_whose_extra_is_not_installed_names_it(
    installed: str, command: tuple[str, ...], extra: str, request: pytest.FixtureRequest
) -> None:
    # Our packages are those of the checkout: the wheel has all of them.
    python = request.getfixturevalue(installed) / "python"
    done = subprocess.run([python, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    assert re.fullmatch(
        rf".*The Python module '\w+' is not installed: install the package with its extra '{extra}', "
        rf"as in `pip install 'neuron-dra\[{extra}\]'`\.\n",
        done.stderr.splitlines(keepends=True)[-1],
    )


@pytest.fixture
def collector() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


@pytest.fixture
def server(webhook_programs: Path, tmp_path: Path, collector: Receiver) -> Iterator[tuple[str, int]]:
    """The standalone webhook from the wheel, which may write only to its directory, with the chart's variables."""
    argv = [
        webhook_programs / "neuron-dra",
        "webhook",
        "--standalone",
        "--port=0",
        "--metrics-port=0",
        "--log-format=json",
    ]
    [container] = pod_specs(render({"tracing": {"endpoint": collector.url, "headers": {"secretName": "s"}}}))[
        "Deployment/neuron-dra"
    ]["containers"]
    # As the kubelet fills them in.
    filled = {each["name"]: each.get("value", "one") for each in container["env"]}
    filled["OTEL_EXPORTER_OTLP_HEADERS"] = "authorization=Bearer%20token"
    attributes = filled["OTEL_RESOURCE_ATTRIBUTES"]
    filled["OTEL_RESOURCE_ATTRIBUTES"] = re.sub(r"\$\((\w+)\)", lambda found: filled[found[1]], attributes)
    environment = {**ENVIRONMENT, **filled}
    with (tmp_path / "log").open("wb") as log:
        child = subprocess.Popen([*argv, f"--tls-dir={tmp_path}"], cwd=tmp_path, stderr=log, env=environment)
    try:
        deadline = time.monotonic() + 60
        while not (found := re.search(r"https://([\d.]+):(\d+)", (tmp_path / "log").read_text())):
            assert child.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < deadline, (tmp_path / "log").read_text()
            time.sleep(0.05)
        yield found[1], int(found[2])
    finally:
        child.terminate()
        assert child.wait(60) == 0


def test_the_webhook_serves_and_sends_traces_from_the_wheel_alone(
    server: tuple[str, int], tmp_path: Path, collector: Receiver
) -> None:
    context = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
    connection = http.client.HTTPSConnection(*server, timeout=60, context=context)
    for method, path, body in (("GET", "/readyz", None), ("POST", "/mutate", json.dumps(review()))):
        connection.request(method, path, body, {"Content-Type": "application/json"})
        answer: Any = connection.getresponse()
        said = answer.read()
        assert answer.status == http.client.OK, said
    connection.close()
    eventually(lambda: "review /mutate" in collector.spans(), "the trace")
    assert {headers["authorization"] for headers, _ in collector.received} == {"Bearer token"}
    about = {each.key: each.value.string_value for each in collector.resources()[0].resource.attributes}
    assert (about["service.name"], about["k8s.pod.name"]) == ("neuron-dra-webhook", "one")


def test_the_chart_runs_the_installed_commands() -> None:
    commands = {spec["containers"][0]["command"][0] for spec in pod_specs(render(EVERYTHING)).values()}
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    # The names of the same program as a plugin of kubectl, for a workstation.
    assert commands == set(scripts) - {"kubectl-neuron", "kubectl_complete-neuron"}
