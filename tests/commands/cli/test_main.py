"""The commands as processes: start, errors, output."""

import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from runtime import listening
from tests.support.invoking import invoke
from tests.support.serving import ROOT, Client, Process, free_port, review
from webhook.server import command as cli_webhook
from webhook.server import settings

DEVICES = {"limits": {"aws.amazon.com/neuron": "4"}}
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "train"},
    "spec": {"containers": [{"name": "main", "image": "train", "resources": DEVICES}]},
}


def run_process(*arguments: str, cwd: Path, environment: dict[str, str] | None = None) -> tuple[int, str]:
    """Exit code and stderr."""
    with Process(["-m", "commands", *arguments], cwd=cwd, environment=environment, forked=True) as process:
        return process.wait(), process.stderr


# --- a run from start to end -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    arguments = ["-m", "webhook", "webhook", "--standalone", "--port", "0", "--metrics-port", str(free_port())]
    with Process(arguments, cwd=tmp_path_factory.mktemp("run")) as process:
        yield process


def test_standalone_serves_converts_counts_and_stops(standalone: Process) -> None:
    """End to end: one process with all its output."""
    configuration = standalone.event("configuration")["settings"]
    assert (configuration["standalone"], configuration["mode"]) == (True, "convert")
    assert standalone.event("certificates made")["because"] == "ca.crt, tls.crt, tls.key did not exist"
    metrics_url = standalone.event("serving metrics")["url"]
    url = standalone.event("serving")["url"][0]
    directory = Path(f"/proc/{standalone.process.pid}/cwd").resolve() / ".neuron-dra/tls"

    with Client(url, directory / "ca.crt") as client:
        checks = client.get("/readyz?verbose").body.decode()
        assert [line.split(":")[0] for line in checks.splitlines()] == [
            "[+]tls ok",
            "[+]caches ok",
            "[+]serving ok",
            "[+]shutdown ok",
            "readyz check passed",
        ]
        reply = client.review(review(uid="u-1", name="train", object=POD))
    assert reply.response["allowed"] is True
    assert any(operation["path"] == "/spec/resourceClaims" for operation in reply.patch)

    decision = standalone.event("decision")
    assert (decision["uid"], decision["name"], decision["decision"]) == ("u-1", "train", "converted")
    with urllib.request.urlopen(metrics_url, timeout=60) as answer:  # noqa: S310 - our own port
        metrics = answer.read().decode()
    assert 'neuron_dra_reviews_total{dry_run="false",kind="Pod",operation="CREATE",outcome="converted"' in metrics
    assert "neuron_dra_decision_lines_lost_total 0.0" in metrics
    not_after = float(metrics.partition("\nneuron_dra_serving_certificate_not_after_timestamp_seconds ")[2].split()[0])
    assert 360 < (not_after - time.time()) / 86400 < 366

    standalone.signal(signal.SIGTERM)
    standalone.event("stopped")
    assert standalone.wait() == 0


def test_settings_reach_the_conversion(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("standalone: true\nmode: shadow\nport: 0\nmetricsPort: 0\n")
    with Process(["-m", "webhook", "webhook", "--config", "config.yaml"], cwd=tmp_path, forked=True) as process:
        url = process.event("serving")["url"][0]
        with Client(url, tmp_path / ".neuron-dra/tls/ca.crt") as client:
            response = client.review(review(object=POD)).response
        assert "patch" not in response
        assert any(warning.startswith("NEU208") for warning in response["warnings"])


def test_decisions_are_written_before_the_process_ends(tmp_path: Path) -> None:
    arguments = ["-m", "webhook", "webhook", "--standalone", "--port", "0", "--metrics-port", "0"]
    with Process(arguments, cwd=tmp_path, forked=True) as process:
        url = process.event("serving")["url"][0]
        with Client(url, tmp_path / ".neuron-dra/tls/ca.crt") as client:
            for number in range(20):
                client.review(review(uid=f"u-{number}"))
        process.signal(signal.SIGINT)
        assert process.wait() == 0
        logged = [json.loads(line) for line in process.seen]
        assert [line["uid"] for line in logged if line["event"] == "decision"] == [f"u-{n}" for n in range(20)]


# --- what cannot start ------------------------------------------------------------------------------------


def test_a_port_in_use_is_exit_code_3(tmp_path: Path) -> None:
    with listening.listen("127.0.0.1", 0, "", "") as taken:
        port = str(taken.getsockname()[1])
        code, stderr = run_process("webhook", "--standalone", "--metrics-port", "0", "--port", port, cwd=tmp_path)
        assert code == 3
        assert f"Error: Cannot listen on 127.0.0.1, port {port}: it is in use." in stderr
        assert "Traceback" not in stderr
        code, stderr = run_process("webhook", "--standalone", "--port", "0", "--metrics-port", port, cwd=tmp_path)
        assert code == 3
        assert "choose another port with --metrics-port." in stderr


CAUSES: dict[str, tuple[list[str], dict[str, str]]] = {
    "Error: nowhere has no tls.crt and no tls.key. Mount the serving certificate's Secret there, set --tls-dir "
    "to where it is, or try --standalone.": (["--tls-dir", "nowhere"], {}),
    "Error: No certificate can be made for --host: 'my host' is neither an IP address nor a DNS name.": (
        ["--standalone", "--host", "my host"],
        {},
    ),
    "Error: Cannot write certificates to /proc/tls: No such file or directory. Choose another directory with "
    "--tls-dir.": (["--standalone", "--tls-dir", "/proc/tls"], {}),
    "Error: --port is 'x', and must be a whole number from 0 to 65535.": (["--port", "x"], {}),
    "Error: NEURON_DRA_MODE is 'on', and must be one of": ([], {"NEURON_DRA_MODE": "on"}),
    "Error: Cannot read the config file none: No such file": (["--config", "none"], {}),
    "Error: No such option '--prot'.": (["--prot", "1"], {}),
    "Error: Got unexpected extra argument (extra)": (["extra"], {}),
    "Error: Option '--port' requires an argument.": (["--port"], {}),
}


@pytest.mark.parametrize(
    ("message", "arguments", "environment"), [(message, *row) for message, row in CAUSES.items()], ids=CAUSES
)
def test_a_server_that_cannot_start_exits_with_3_and_the_cause(
    tmp_path: Path, arguments: list[str], environment: dict[str, str], message: str
) -> None:
    code, stderr = run_process("webhook", *arguments, cwd=tmp_path, environment=environment)
    assert code == 3
    assert message in stderr
    assert "Traceback" not in stderr


def test_an_unreadable_kubeconfig_is_exit_code_3(tmp_path: Path, tls_directory: Path) -> None:
    arguments = ["--tls-dir", str(tls_directory), "--kubeconfig", "nowhere", "--port", "0", "--metrics-port", "0"]
    code, stderr = run_process("webhook", *arguments, cwd=tmp_path)
    assert code == 3
    assert stderr.splitlines()[-1].startswith("Error: ")
    assert "nowhere" in stderr.splitlines()[-1]
    assert "Traceback" not in stderr


KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: test
contexts: [{{name: test, context: {{cluster: test, user: test}}}}]
clusters: [{{name: test, cluster: {{server: "http://127.0.0.1:{port}"}}}}]
users: [{{name: test, user: {{token: none}}}}]
"""


def against_cluster(directory: Path, tls_directory: Path, port: int) -> Process:
    (directory / "kubeconfig").write_text(KUBECONFIG.format(port=port))
    arguments = ["--tls-dir", str(tls_directory), "--kubeconfig", "kubeconfig", "--port", "0", "--metrics-port", "0"]
    return Process(["-m", "webhook", "webhook", "--sync-timeout", "1", *arguments], cwd=directory, forked=True)


def test_an_unreachable_cluster_is_exit_code_3(tmp_path: Path, tls_directory: Path) -> None:
    port = free_port()
    with against_cluster(tmp_path, tls_directory, port) as process:
        assert process.wait() == 3
        last = process.seen[-1]
        assert last.startswith("Error: ")
        assert f"127.0.0.1:{port}" in last
        assert "Traceback" not in process.stderr


def test_a_server_that_still_waits_for_its_cluster_can_be_stopped(tmp_path: Path, tls_directory: Path) -> None:
    with (
        listening.listen("127.0.0.1", 0, "", "") as silent,
        against_cluster(tmp_path, tls_directory, silent.getsockname()[1]) as process,
    ):
        connection, _ = silent.accept()
        process.signal(signal.SIGTERM)
        process.event("stopped while starting")
        process.event("stopped")
        assert process.wait() == 0
        connection.close()


# --- help and weight --------------------------------------------------------------------------------------


def test_help_lists_the_commands() -> None:
    text = " ".join(invoke("--help").output.split())
    assert "convert Rewrite manifests offline" in text
    assert "webhook Serve admission reviews" in text


def test_every_setting_is_a_flag_with_its_variable_and_default() -> None:
    result = CliRunner().invoke(cli_webhook.webhook, ["--help"], terminal_width=300)
    assert result.exit_code == 0
    for setting in settings.declarations():
        assert f"  {setting.flag}" in result.output
        notes = setting.variable + (f"; default: {setting.default}" if setting.default else "")
        assert f"[{notes}]" in " ".join(result.output.split())


def test_the_version_is_that_of_the_distribution() -> None:
    result = invoke("--version")
    assert result.output.startswith("neuron-dra 0.")


def test_unknown_commands_are_usage_errors() -> None:
    result = invoke("webhok")
    assert result.exit_code == 2
    assert "No such command 'webhok'" in result.output


HEAVY = (
    "pydantic",
    "uvicorn",
    "starlette",
    "prometheus_client",
    "kubernetes",
    "aiohttp",
    "cryptography",
    "uvloop",
    "asyncio",
)


def imported(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


INVOKE = "from commands.cli.main import main\nmain({arguments}, standalone_mode=False)"


@pytest.mark.parametrize(
    ("arguments", "absent"),
    [
        pytest.param(["--help"], (*HEAVY, "msgspec", "yaml"), id="help"),
        pytest.param(["webhook", "--help"], HEAVY[:-1], id="webhook-help"),
        pytest.param(["convert", "--help"], HEAVY[:-1], id="convert-help"),
    ],
)
def test_commands_load_no_more_than_they_use(arguments: list[str], absent: tuple[str, ...]) -> None:
    assert not imported(INVOKE.format(arguments=arguments)) & set(absent)


def test_a_server_without_a_cluster_loads_no_client() -> None:
    loaded = imported("import webhook.server.app")
    assert "uvicorn" in loaded
    assert not loaded & {"kubernetes", "aiohttp", "pydantic"}
