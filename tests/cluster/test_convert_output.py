"""What `neuron-dra convert` prints, kubectl and the API server take, whatever it was made of."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.controlplane import Assets
from tests.cluster.kubectl import Kubectl

ROOT = Path(__file__).parents[2]
BUILT_IN = (
    "legacy-pod/pod",
    "single-device/job",
    "four-connected-devices/deployment",
    "two-containers/pod",
    "compile-init-container/job",
    "cores-on-trn2/pod",
    "lnc-1/statefulset",
)
LEGACY = {"name": "m", "image": "x", "resources": {"limits": {"aws.amazon.com/neuron": "4"}}}
POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "json"}, "spec": {"containers": [LEGACY]}}
STREAMS = {
    "json-with-escapes": json.dumps({**POD, "metadata": {"name": "json", "annotations": {"a": "😀"}}}),
    "json-in-a-row": json.dumps(POD) + json.dumps({**POD, "metadata": {"name": "other"}}, indent="\t"),
    "list": json.dumps(
        {"apiVersion": "v1", "kind": "PodList", "items": [{key: POD[key] for key in ("metadata", "spec")}]}
    ),
    "directive": "%YAML 1.1\n---\n" + json.dumps(POD),
    "content-on-the-line": "--- " + json.dumps(POD),
    "crlf-and-byte-order-mark": "\ufeff" + json.dumps(POD, indent=1).replace("\n", "\r\n") + "\r\n...\r\n",
    "anchors": (
        "apiVersion: v1\nkind: Pod\nmetadata: {name: anchors}\nspec:\n  containers:\n"
        "  - &c\n    name: a\n    image: x\n"
        "    resources: &r {limits: &l {aws.amazon.com/neuron: 1}, requests: *l}\n  - <<: *c\n    name: b\n"
        "  - {name: c, image: x, resources: *r}\n"
    ),
}


def convert_output(text: bytes, output: str) -> tuple[str, str]:
    """The output of `convert`, and its messages."""
    command = [sys.executable, "-m", "commands", "convert", "-f", "-", "-o", output]
    done = subprocess.run(command, input=text, cwd=ROOT, capture_output=True, check=True)
    return done.stdout.decode(), done.stderr.decode()


def convert(text: bytes, output: str) -> str:
    return convert_output(text, output)[0]


def assert_taken(kubectl: Kubectl, text: bytes) -> None:
    for output in ("yaml", "json"):
        printed, said = convert_output(text, output)
        for flags in ((), ("--server-side",)):
            asked = ("apply", "--dry-run=server", "--validate=strict", *flags, "-f", "-")
            if flags and "NEU209" in said:
                # The warning is true: server-side apply refuses two references to one claim.
                assert "duplicate entries" in kubectl.run(*asked, stdin=printed).stderr
                continue
            done = kubectl.must(*asked, stdin=printed)
            assert "resourceclaimtemplate.resource.k8s.io/neuron-" in done.stdout


@pytest.mark.parametrize("example", BUILT_IN)
def test_the_api_server_accepts_a_converted_example(kubectl: Kubectl, namespace: str, example: str) -> None:
    text = (ROOT / "deploy" / "examples" / f"{example}.yaml").read_text()
    assert_taken(kubectl, text.replace("namespace: inference", f"namespace: {namespace}").encode())


@pytest.mark.parametrize("text", STREAMS.values(), ids=STREAMS)
def test_the_api_server_accepts_a_converted_stream_in_any_yaml_style(kubectl: Kubectl, text: str) -> None:
    assert_taken(kubectl, text.encode())


def test_the_api_server_accepts_converted_claims_and_classes_of_the_private_beta(
    kubectl: Kubectl, namespace: str, assets: Assets
) -> None:
    text = (ROOT / "tests" / "support" / "source_examples" / "beta.yaml").read_text()
    text = text.replace("namespace: neuron-test7", f"namespace: {namespace}")
    flags = ("--dry-run=server", "--validate=strict", "-n", namespace, "-f", "-")
    # This API server may serve the old versions, which a cluster does not by default: from 1.35 on it then warns.
    before = kubectl.run("apply", *flags, stdin=text)
    warned = "v1beta1 ResourceClaimTemplate is deprecated" in before.stderr
    assert warned or "no matches for kind" in before.stderr or (assets.version[:2] < (1, 35) and before.code == 0)
    done = kubectl.must("apply", *flags, stdin=convert(text.encode(), "yaml"))
    assert "deprecated" not in done.stderr
    assert len(done.stdout.splitlines()) == text.count("apiVersion: resource.k8s.io/")
