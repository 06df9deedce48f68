"""What every command does with an interrupt, and with standard output that cannot be written."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import forked

ROOT = Path(__file__).parents[3]
POD = ROOT / "deploy" / "examples" / "legacy-pod" / "pod.yaml"
COMMANDS = {
    "convert": ("convert", "-f", str(POD)),
    "validate": ("validate", "-f", str(POD)),
    "policy": ("policy", "check", "policies/packs"),
    "explain": ("explain", "-f", str(POD)),
    "help": ("--help",),
    "help-of-a-command": ("convert", "--help"),
    "version": ("--version",),
}


def run_redirected(*arguments: str, redirect: str = "", stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = ["sh", "-c", f'exec "$@" {redirect}', "sh", sys.executable, "-m", "commands", *arguments]
    return subprocess.run(command, cwd=ROOT, input=stdin, capture_output=True, timeout=600, check=False)


def run_forked(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return forked.run("commands", arguments, cwd=ROOT, environment=os.environ, stdin=stdin)


@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS)
def test_a_full_disk_is_reported_in_one_line(arguments: tuple[str, ...]) -> None:
    done = run_redirected(*arguments, redirect="> /dev/full")
    assert done.stderr.decode().splitlines()[-1:] == [
        "Error: Cannot write to standard output: No space left on device."
    ]
    assert b"Traceback" not in done.stderr
    assert done.returncode == 2


@pytest.mark.parametrize("command", ["convert", "validate", "policy", "explain"])
def test_closed_standard_output_is_reported_in_one_line(command: str) -> None:
    done = run_redirected(*COMMANDS[command], redirect=">&-")
    assert (done.stderr, done.returncode) == (b"Error: Standard output is closed.\n", 2)


def test_a_reader_that_stops_is_no_error() -> None:
    done = run_redirected("convert", "-f", str(POD), "--families", "trn1", redirect="| head -c 1")
    assert (done.stdout, done.stderr) == (b"a", b"")


@pytest.mark.parametrize("command", ["convert", "validate"])
def test_an_interrupt_exits_with_130_and_no_message(command: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "commands", command, "-f", "-"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        # A background job of a shell without job control ignores SIGINT, and its children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - no threads in this process
    ) as process:
        assert process.stdin is not None
        # More than a pipe holds: this returns when the command reads.
        process.stdin.write(b"# a comment\n" * 20_000)
        process.stdin.flush()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=600)
    assert (process.returncode, out, err) == (130, b"", b"")


def test_standard_input_without_objects_is_reported() -> None:
    for command in ("convert", "validate"):
        done = run_forked(command, "-f", "-", stdin=b"# nothing\n")
        assert b"<stdin>: it contains no objects." in done.stderr
        assert done.returncode == 0


@pytest.mark.parametrize("command", ["convert", "validate"])
def test_files_are_also_arguments(command: str) -> None:
    assert run_forked(command, str(POD)).stdout == run_forked(command, "-f", str(POD)).stdout


@pytest.mark.parametrize("command", ["convert", "validate"])
def test_a_command_without_input_is_a_usage_error(command: str) -> None:
    done = run_forked(command)
    assert done.returncode == 2
    said = f"Error: No manifests to {command}: name files or directories, or - for standard input.\n"
    assert done.stderr.decode().endswith(said)


# --- a cluster that does not answer, and a terminal --------------------------------------------------------------

NOWHERE = """\
apiVersion: v1
kind: Config
current-context: a
clusters: [{name: a, cluster: {server: "http://127.0.0.1:1"}}]
contexts: [{name: a, context: {cluster: a, user: u}}]
users: [{name: u, user: {}}]
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ("cordon", "node-1"),
        ("drain", "node-1"),
        ("explain", "pod/train"),
        ("map",),
        ("probe", "--timeout", "0"),
        ("report",),
        ("status",),
        ("templates", "list"),
        ("templates", "prune"),
        ("validate", "-f", str(POD)),
    ],
    ids=lambda arguments: "-".join(arguments[:2]),
)
def test_a_server_that_does_not_listen_is_reported_in_the_same_words(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(NOWHERE)
    done = run_forked(*arguments, "--kubeconfig", str(path))
    assert done.stderr.decode() == "Error: cannot connect to http://127.0.0.1:1: Connection refused.\n"
    assert done.returncode == (1 if arguments[0] == "probe" else 2)


def on_terminal(*arguments: str, **environment: str) -> str:
    """What a command writes to a terminal of 80 columns."""
    ours, theirs = os.openpty()
    variables = {**os.environ, "TERM": "xterm", "COLUMNS": "80", **environment}
    with Path(os.devnull).open() as nothing:
        child = forked.Forked(
            "commands", arguments, (nothing.fileno(), theirs, theirs), cwd=ROOT, environment=variables
        )
    os.close(theirs)
    shown = b""
    while True:
        try:
            piece = os.read(ours, 4096)
        except OSError:  # Linux reports the closed end so.
            break
        shown += piece
    os.close(ours)
    child.wait()
    return shown.decode().replace("\r\n", "\n")


@pytest.mark.parametrize(
    ("arguments", "painted"),
    [
        (("convert", "-o", "diff"), "\x1b[36m@@ -"),
        (("validate",), "\x1b[1;33mwarning NEU216\x1b[0m"),
        (("report",), "\x1b[1;33mWhat changes\x1b[0m"),
    ],
    ids=["convert", "validate", "report"],
)
def test_a_terminal_gets_colours_unless_no_color_is_set(arguments: tuple[str, ...], painted: str) -> None:
    without = {"NEURON_DRA_FAMILIES": "", "NO_COLOR": ""}
    assert painted in on_terminal(*arguments, "-f", str(POD), **without)
    assert "\x1b" not in on_terminal(*arguments, "-f", str(POD), **{**without, "NO_COLOR": "1"})


def test_probe_shows_on_a_terminal_how_long_it_tries(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(NOWHERE)
    shown = on_terminal("probe", "--timeout", "2.5", "--kubeconfig", str(path))
    assert " s of 2 s: it is tried again" in shown
    assert shown.endswith("\r\x1b[KError: cannot connect to http://127.0.0.1:1: Connection refused.\n")
