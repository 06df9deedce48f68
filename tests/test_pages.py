"""README and the pages of the book that need no cluster: every command is run, and prints what the page says."""

import os
import re
import shlex
import shutil
import ssl
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.support.pages import Reader, same, tutorials, unset_variables
from tests.support.serving import free_port

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
OFFLINE = ("quick-start.md", "how-to/validate.md")
SERVED = "tutorials/first-policy.md"
PATIENCE = 30.0
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PROGRAM = re.compile(r"^(?:\$ )?(make|\.venv/bin/neuron-dra|neuron-dra|kubectl|helm|docker) ")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What a reader has: a clone after `make install`."""
    for folder in ("deploy", "requirements"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    for file in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / file, tmp_path)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    return tmp_path


def environment(directory: Path, port: int = 0) -> dict[str, str]:
    """With a `make` that does not install, and ports of our own."""
    programs = directory / "programs"
    programs.mkdir()
    done = " ".join(f"-o .venv/{stamp}" for stamp in (".empty", ".runtime", ".installed"))
    (programs / "make").write_text(f'#!/bin/sh\nexec {shutil.which("make")} {done} "$@"\n')
    (programs / "make").chmod(0o755)
    return {
        "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "NEURON_DRA_PORT": str(port),
        "NEURON_DRA_METRICS_PORT": "0",
    }


@pytest.mark.parametrize("name", OFFLINE)
def test_the_commands_of_a_page_print_its_output(name: str, clone: Path) -> None:
    Reader(clone, environment(clone)).follow((DOCS / name).read_text())


def test_the_commands_of_the_policy_tutorial_print_its_output(tmp_path: Path) -> None:
    for program in ("curl", "jq"):
        if shutil.which(program) is None:
            pytest.skip(f"the page uses {program}, which is not here")
    page = (DOCS / SERVED).read_text()
    [command] = re.findall(r"^```\n(neuron-dra webhook .*)\n```$", page, re.MULTILINE)
    before, after = page.split(command)
    port = free_port()
    variables = environment(tmp_path, port)
    folder = tmp_path / "reader"
    folder.mkdir()
    reader = Reader(folder, variables, {"9443": str(port)})
    reader.follow(before + "```\n")
    with (tmp_path / "server.log").open("w") as log:
        server = subprocess.Popen(
            shlex.split(command), cwd=folder, env={**os.environ, **variables}, stdout=log, stderr=log
        )
    try:
        ready(folder / ".neuron-dra/tls/ca.crt", port)
        reader.follow("```\n" + after, patience=PATIENCE)
    finally:
        server.terminate()
        server.wait(PATIENCE)


def ready(authority: Path, port: int) -> None:
    """Return when the server answers."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if authority.exists():
            try:
                context = ssl.create_default_context(cafile=str(authority))
                if httpx.get(f"https://127.0.0.1:{port}/readyz", verify=context, trust_env=False).is_success:
                    return
            except (httpx.HTTPError, ssl.SSLError):
                pass
        time.sleep(0.1)
    pytest.fail("the server does not answer")


def commands_of(page: str) -> list[str]:
    """Lines of a page's blocks that call a program of ours, make, kubectl, helm or docker."""
    lines = [line.strip() for _, block in _FENCE.findall(page) for line in block.splitlines()]
    return [line.removeprefix("$ ") for line in lines if _PROGRAM.match(line)]


README, CONTRIBUTING = ((ROOT / name).read_text() for name in ("README.md", "CONTRIBUTING.md"))


@pytest.mark.parametrize(
    "command", sorted({each.partition("#")[0].strip() for each in commands_of(README) + commands_of(CONTRIBUTING)})
)
def test_a_command_of_the_readme_works(command: str, clone: Path) -> None:
    variables = environment(clone)
    if command == "make run":
        command = "make run ARGS=--once"
    elif command.startswith("make "):
        # These run all tests, benchmarks and so on: what they would run is enough.
        command = command.replace("make ", "make --dry-run ")
    done = subprocess.run(
        shlex.split(command), cwd=clone, env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_page_that_needs_no_cluster_is_tested() -> None:
    """Tutorials are either here or in tests/cluster/test_tutorials.py, which finds them by their sandbox."""
    assert set(tutorials(DOCS)) == set((DOCS / "tutorials").glob("*.md"))
    with_sandbox = {path for path in tutorials(DOCS) if "how-to/emulate.md" in path.read_text()}
    assert set(tutorials(DOCS)) - with_sandbox == {DOCS / SERVED}


@pytest.mark.parametrize(
    "page", sorted(DOCS.rglob("*.md")), ids=lambda path: str(path.relative_to(DOCS).with_suffix(""))
)
def test_a_page_sets_the_variables_that_its_commands_use(page: Path) -> None:
    text = page.read_text()
    # The sandbox prints the command that sets it, and each tutorial begins there.
    given = {"KUBECONFIG"} if "emulate.md#start" in text else set()
    assert unset_variables(text) - given == set()


def test_a_variable_that_is_not_set_is_found() -> None:
    assert unset_variables("```sh\necho $A ${B%x} '$C'\nB=1 D=2\necho $D $B\n```") == {"A", "B"}


@pytest.mark.parametrize(
    ("expected", "printed", "alike"),
    [
        ("a  b\nc", "a b\nc\n", True),
        ("a\n[…]\nd", "a\nb\nc\nd", True),
        ("a [\u2026] d", "a b c d", True),
        ("x-neuron-abcde 3s", "x-neuron-12345 1m5s", True),
        ("gone (8s old)", "gone (1m old)", True),
        ("at 2026-01-01T00:00:00Z", "at 2027-01-01T00:00:00Z", True),
        ("a\nb", "a\nc", False),
        ("a", "a\nb", False),
        ("4 devices", "5 devices", False),
    ],
)
def test_outputs_are_compared_without_variable_parts(expected: str, printed: str, alike: bool) -> None:
    assert same(expected, printed) is alike
