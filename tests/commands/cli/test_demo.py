"""`make run`: output, exit codes and errors."""

import json
import signal
from pathlib import Path

import pytest
import yaml

from commands.cli import demo
from runtime import listening
from tests.support.serving import Client, Process, free_port

LEGACY_POD = """\
apiVersion: v1
kind: Pod
metadata:
  name: train
spec:
  containers:
    - name: main
      image: train
      resources:
        limits:
          aws.amazon.com/neuron: "{count}"  # a comment that stays
"""


def start(cwd: Path, *arguments: str, count: str = "4") -> Process:
    (cwd / "pod.yaml").write_text(LEGACY_POD.format(count=count))
    environment = {"NEURON_DRA_PORT": "0", "NEURON_DRA_METRICS_PORT": str(free_port())}
    return Process(
        ["-m", "commands.cli.demo", "--pod", "pod.yaml", *arguments], cwd=cwd, environment=environment, forked=True
    )


def section(text: str, title: str) -> str:
    return (
        text.partition(f"# {title}\n\n")[2]
        .partition("\n# ")[0]
        .partition("\nThe webhook serves")[0]
        .partition("\nThe example is over")[0]
    )


def test_once_shows_the_conversion_and_stops(tmp_path: Path) -> None:
    with start(tmp_path, "--once") as process:
        assert process.wait() == 0, process.stderr
        text = process.stdout()
    assert text.endswith("The example is over, and the webhook stops. `make run` keeps it serving.\n")
    assert "Ctrl-C" not in text
    families = "There is no cluster. The webhook assumes nodes of these families (--families): "
    assert text.startswith(f"{families}trn1, trn1n, trn2, trn2u, trn3.\n")
    assert section(text, "What the user applies").strip() == LEGACY_POD.format(count="4").strip()
    assert "path: /spec/resourceClaims" in section(text, "What the webhook changes (JSON patch)")
    stored = yaml.safe_load(section(text, "What the cluster stores"))
    template = yaml.safe_load(section(text, "What the webhook creates before it answers"))
    assert stored["spec"]["containers"][0]["resources"]["claims"] == [{"name": "neuron"}]
    assert stored["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] == template["metadata"]["name"]
    assert template["spec"]["spec"]["devices"]["requests"][0]["exactly"]["count"] == 4
    assert json.loads(process.seen[0])["event"] == "decision", "nothing but decisions is logged"


def test_the_default_example_is_followed_by_a_refusal(tmp_path: Path) -> None:
    environment = {"NEURON_DRA_PORT": "0", "NEURON_DRA_METRICS_PORT": str(free_port())}
    with Process(["-m", "commands.cli.demo", "--once"], cwd=tmp_path, environment=environment, forked=True) as process:
        assert process.wait() == 0, process.stderr
        text = process.stdout()
    said = section(text, "The answer to a pod that requests seven devices")
    assert said.startswith(
        "NEU105: Instance type trn1.32xlarge does not support requests for device: 7. Please request a different number"
        " of devices. Nearest valid counts: 4 or 8."
    )
    assert said.strip() in " ".join((Path(__file__).parents[3] / "README.md").read_text().split()), "as README shows it"


def test_the_demo_server_keeps_running_and_its_commands_work(tmp_path: Path) -> None:
    with start(tmp_path) as process:
        assert process.event("decision")["decision"] == "converted"
        review = tmp_path / ".neuron-dra/review.json"
        assert json.loads(review.read_text())["request"]["name"] == "train"
        line = ""
        while not line.startswith("The webhook serves "):
            line = process.output.readline().decode()
            assert line, process.stderr
        url = line.split()[3].rstrip(";")
        assert process.output.readline() == b"\n"
        command = process.output.readline().decode()
        assert command.startswith(f"  curl --cacert .neuron-dra/tls/ca.crt '{url}"), command
        with Client(url, tmp_path / ".neuron-dra/tls/ca.crt") as client:
            assert client.get("/readyz").status == 200
            assert client.review(review.read_bytes()).response["allowed"] is True
        process.signal(signal.SIGINT)
        assert process.wait() == 0


def test_the_demo_shows_a_denial(tmp_path: Path) -> None:
    with start(tmp_path, "--once", count="7") as process:
        assert process.wait() == 0, process.stderr
        text = process.stdout()
    refusal = section(text, "The webhook refuses it")
    assert "Instance type trn1.32xlarge does not support requests for device: 7." in refusal


def test_a_busy_port_is_exit_code_3(tmp_path: Path) -> None:
    with listening.listen("127.0.0.1", 0, "", "") as taken:
        port = taken.getsockname()[1]
        with start(tmp_path, "--once", "--port", str(port)) as process:
            assert process.wait() == 3
            assert f"Error: Cannot listen on 127.0.0.1, port {port}: it is in use." in process.stderr
            assert process.stdout() == ""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(None, "Error: Cannot read the example other.yaml: ", id="missing"),
        pytest.param("a: b: c", "Error: Cannot read the example other.yaml: ", id="not-yaml"),
        pytest.param("kind: Service", "Error: The example other.yaml is not a Pod. Choose another", id="kind"),
        pytest.param("- 1", "Error: The example other.yaml is not a Pod.", id="list"),
    ],
)
def test_an_invalid_example_file_is_reported(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "other.yaml").write_text(content)
    with start(tmp_path, "--once", "--pod", "other.yaml") as process:
        assert process.wait() == 3
        assert message in process.stderr
        assert "Traceback" not in process.stderr


def test_the_shipped_example_is_a_pod() -> None:
    assert yaml.safe_load(demo.EXAMPLE.read_text())["kind"] == "Pod"
