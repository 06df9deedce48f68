"""Both names of the program, completion of shells and of kubectl, and man pages."""

import importlib
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from commands.__main__ import kubectl_complete
from commands.cli import man
from commands.cli.main import KUBECTL, NEURON_DRA, main
from kubeletplugin.cli import main as plugin
from tests.support.invoking import invoke

ROOT = Path(__file__).resolve().parents[3]
SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in $PATH with the scripts, as an installer makes them."""
    for name, target in SCRIPTS.items():
        module, _, function = target.partition(":")
        script = tmp_path / name
        script.write_text(
            f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\n"
            f"from {module} import {function}\nsys.exit({function}())\n"
        )
        script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def run_shell(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("target", SCRIPTS.values())
def test_every_script_has_its_function(target: str) -> None:
    module, _, function = target.partition(":")
    assert callable(getattr(importlib.import_module(module), function))


def test_the_names_are_those_that_are_installed() -> None:
    assert {NEURON_DRA.script, KUBECTL.script, "kubectl_complete-neuron"} <= set(SCRIPTS)


def commands(group: click.Group, words: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    context = click.Context(group)
    found = [words]
    for name in group.list_commands(context):
        inner = group.get_command(context, name)
        found += commands(inner, (*words, name)) if isinstance(inner, click.Group) else [(*words, name)]
    return found


@pytest.mark.parametrize("words", commands(main), ids=" ".join)
def test_every_command_has_a_short_flag_for_help(words: tuple[str, ...]) -> None:
    long, short = (invoke(*words, flag) for flag in ("--help", "-h"))
    assert (short.exit_code, short.stdout) == (0, long.stdout)
    assert "-h, --help" in short.stdout


def test_the_driver_has_a_short_flag_for_help() -> None:
    assert CliRunner().invoke(plugin, ["-h"]).exit_code == 0


def test_help_names_the_program_as_the_user_called_it(path: Path) -> None:
    assert run_shell(str(path / "kubectl-neuron"), "map", "-h").startswith("Usage: kubectl neuron map [OPTIONS]")
    assert run_shell(str(path / "neuron-dra"), "map", "-h").startswith("Usage: neuron-dra map [OPTIONS]")


# --- shells -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize("program", [NEURON_DRA, KUBECTL], ids=["neuron-dra", "kubectl neuron"])
def test_a_shell_gets_its_script(shell: str, program: object) -> None:
    assert isinstance(program, type(NEURON_DRA))
    result = CliRunner().invoke(main, ["completion", shell], prog_name=program.name)
    assert result.exit_code == 0
    assert program.script in result.stdout
    assert f"{program.variable}={shell}_complete" in result.stdout


def test_bash_completes_commands_and_values(path: Path) -> None:
    assert path.exists()
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    script = (
        "source <(neuron-dra completion bash); "
        "COMP_WORDS=(neuron-dra {words}); COMP_CWORD={number}; _neuron_dra_completion neuron-dra; "
        'echo "${{COMPREPLY[@]}}"'
    )
    assert run_shell("bash", "-c", script.format(words="te", number=1)) == "templates\n"
    assert run_shell("bash", "-c", script.format(words="map -o j", number=3)) == "json\n"


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (["ma"], ["map\tShow which Neuron devices there are, and who holds them.", ":4"]),
        (["map", "-o", "sv"], ["svg", ":4"]),
        (["convert", "-f", ""], [":0"]),
        (["convert", ""], [":0"]),
        (["policy", "check", ""], [":0"]),
        (["map", "nothing-known-of-nodes"], [":4"]),
        (["map", "--context", "pro"], ["production", ":4"]),
    ],
)
def test_kubectl_gets_completions(
    words: list[str],
    lines: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "config").write_text("contexts: [{name: production}, {name: test}]\n")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    monkeypatch.setattr(sys, "argv", ["kubectl_complete-neuron", *words])
    kubectl_complete()
    assert capsys.readouterr().out.splitlines() == lines


def test_a_broken_kubeconfig_completes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config").write_text("contexts: [")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    monkeypatch.setattr(sys, "argv", ["kubectl_complete-neuron", "map", "--context", ""])
    kubectl_complete()
    assert capsys.readouterr().out == ":4\n"


def test_the_real_kubectl_runs_and_completes_the_plugin(path: Path) -> None:
    assert path.exists()
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    assert run_shell("kubectl", "neuron", "--version").startswith("neuron-dra ")
    assert run_shell("kubectl", "__complete", "neuron", "templates", "pr").splitlines()[0].startswith("prune\t")


# --- man pages ----------------------------------------------------------------------------------------------


def test_every_command_has_a_man_page(tmp_path: Path) -> None:
    man.write(tmp_path / "man")
    written = {page.name for page in (tmp_path / "man").iterdir()}
    assert written == {"-".join(("neuron-dra", *words)) + ".1" for words in commands(main)}
    text = (tmp_path / "man" / "neuron-dra-map.1").read_text()
    assert "\\fB\\-n, \\-\\-namespace NAME\\fR\nOnly nodes on which claims of this namespace" in text
    assert ".SH SEE ALSO\n\\fBneuron\\-dra\\fR(1)\n" in text


def test_man_pages_are_valid_roff(tmp_path: Path) -> None:
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed")
    man.write(tmp_path)
    for page in tmp_path.iterdir():
        done = subprocess.run(
            ["groff", "-man", "-Tutf8", "-ww", str(page)], capture_output=True, text=True, timeout=600, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert "NEURON" in done.stdout


def test_no_line_of_help_starts_with_a_roff_request() -> None:
    @click.command(help=".TH\n\nback\\slash")
    def strange() -> None: ...

    text = man.pages(strange, "strange", "1.0")["strange.1"]
    assert "\\&.TH" in text
    assert "back\\eslash" in text
