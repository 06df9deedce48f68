"""The content of objects is never logged: the real command at its most verbose log level, with every error."""

import json
import logging
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runtime import logs as runtime_logs
from tests.support.serving import Answering, Client, Process, review, serving

SECRET = "hunter2-s3cr3t"
POLICY = """
apiVersion: policy.neuron.aws.com/v1alpha1
kind: ValidatingPolicy
metadata: {name: fails}
spec:
  failurePolicy: Ignore
  matchConstraints:
    resourceRules: [{apiGroups: ["*"], apiVersions: ["*"], operations: ["*"], resources: ["*"]}]
  validations:
  - {expression: "int(object.metadata.annotations.note) > 3", message: never}
  - {expression: "object.metadata.annotations[object.metadata.annotations.note] == 'x'", message: never}
  - {expression: "timestamp(object.metadata.annotations.note).getSeconds() == 1", message: never}
  - {expression: "object.metadata.annotations.note + 1 == 2", message: never}
  - {expression: "duration(object.metadata.annotations.note) == duration('1s')", message: never}
  - {expression: "quantity(object.metadata.annotations.note).isGreaterThan(quantity('1'))", message: never}
  - {expression: "object.spec.containers[0].name.matches(object.metadata.annotations.note + '(')", message: never}
---
apiVersion: policy.neuron.aws.com/v1alpha1
kind: ConversionPolicy
metadata: {name: fails-too}
spec:
  order: 1
  match: {conditions: [{name: note, expression: "int(object.metadata.annotations.note) > 3"}]}
"""
OPAQUE = {"driver": "neuron.aws.com", "parameters": {SECRET: SECRET, "kind": SECRET}}
TEMPLATE = {"group": "resource.k8s.io", "version": "v1", "kind": "ResourceClaimTemplate"}


def secret_pod(**spec: Any) -> dict[str, Any]:
    container = {
        "name": "main",
        "env": [{"name": "PASSWORD", "value": SECRET}, {"name": "NEURON_RT_NUM_CORES", "value": SECRET}],
        "args": [f"--token={SECRET}"],
        "resources": {"limits": {"aws.amazon.com/neuron": "4"}},
    }
    annotations = {"note": SECRET, "neuron.aws.com/converted-from": f'{{"{SECRET}'}
    metadata = {"generateName": "w-", "annotations": annotations, "labels": {"neuron.aws.com/converted": "true"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container], **spec}}


def template_review(**devices: Any) -> dict[str, Any]:
    return review(kind=TEMPLATE, object={"spec": {"spec": {"devices": devices}}})


def deep(levels: int) -> bytes:
    inner = b'{"%s":' % SECRET.encode() * levels + b"1" + b"}" * levels
    return json.dumps(review(object={"spec": "@"})).encode().replace(b'"@"', inner)


# request body, and its HTTP status
SENT: dict[str, tuple[Any, int]] = {
    "pod": (review(object=secret_pod()), 200),
    "env-of-a-wrong-type": (review(object=secret_pod(containers=[{"name": "a", "env": SECRET}])), 200),
    "limits-of-a-wrong-type": (
        review(
            object=secret_pod(containers=[{"name": "a", "resources": {"limits": {"aws.amazon.com/neuron": SECRET}}}])
        ),
        200,
    ),
    "containers-of-a-wrong-type": (review(object=secret_pod(containers=SECRET)), 200),
    "annotations-of-a-wrong-type": (review(object={"metadata": {"annotations": SECRET}}), 200),
    "opaque-config": (template_review(requests=[{"name": "a"}], config=[{"opaque": OPAQUE}]), 200),
    "claim-of-wrong-types": (template_review(requests=SECRET, config={SECRET: SECRET}), 200),
    "deep": (deep(500), 200),
    "deeper": (deep(100_000), 200),
    "cut-off": (json.dumps(review(object=secret_pod())).encode()[:-30], 400),
    "no-json": (SECRET.encode(), 400),
    "a-bare-word-inside": (json.dumps(review(object=secret_pod())).encode().replace(b'"main"', SECRET.encode()), 400),
    "bad-escape": (
        json.dumps(review(object=secret_pod())).encode().replace(b'"main"', b'"\\x%s"' % SECRET.encode()),
        400,
    ),
    "no-utf8": (json.dumps(review(object=secret_pod())).encode().replace(b"team", b"\xff"), 200),
    "no-utf8-in-the-uid": (
        json.dumps(review(uid="@", object=secret_pod())).encode().replace(b"@", b"\xff" + SECRET.encode()),
        400,
    ),
    "kind-of-a-wrong-type": (review(kind=[SECRET], object=secret_pod()), 400),
    "uid-missing": (review(uid=None, object=secret_pod()), 400),
}


@pytest.fixture(scope="module")
def talkative(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Client, Callable[[], str]]]:
    directory = tmp_path_factory.mktemp("talkative")
    (directory / "policies").mkdir()
    (directory / "policies" / "p.yaml").write_text(POLICY)
    arguments = ["-m", "webhook", "webhook", "--standalone", "--port=0", "--metrics-port=0", "--log-level=debug"]
    arguments += [f"--tls-dir={directory}/tls", f"--policies={directory}/policies", "--log-format=json"]
    with Process(arguments, cwd=directory) as process:
        url = process.event("serving")["url"][0]

        def ended() -> str:
            client.connection.close()
            process.signal(signal.SIGTERM)
            assert process.wait() == 0
            return process.stderr

        with Client(url.replace("0.0.0.0", "127.0.0.1"), directory / "tls" / "ca.crt") as client:
            yield client, ended


def test_no_log_line_has_content_of_an_object(talkative: tuple[Client, Callable[[], str]]) -> None:
    client, ended = talkative
    for path in ("/mutate", "/validate"):
        for name, (sent, status) in SENT.items():
            assert (name, client.review(sent, path).status) == (name, status)
        body = json.dumps(review(object=secret_pod())).encode()
        assert client.ask("PUT", path, body).status == 405
        assert client.review(body, path, "text/plain").status == 415
        assert client.review(body, path + "s").status == 404
    log = ended()
    assert log.count('"event":"decision"') == 2 * sum(status == 200 for _, status in SENT.values())
    assert log.count('"event":"request refused"') == 2 * (sum(status == 400 for _, status in SENT.values()) + 2)
    assert "policy failed" in log
    assert SECRET not in log
    assert "hunter2" not in log


@pytest.mark.parametrize("form", ["json", "text"])
def test_an_exception_is_logged_with_its_place_and_without_its_text(
    tls_directory: Path, tmp_path: Path, form: runtime_logs.Format
) -> None:
    fault = ValueError(f"invalid literal for int(): {SECRET!r}")
    fault.__cause__ = KeyError(SECRET)
    fault.add_note(SECRET)
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    with (tmp_path / "log").open("w") as stream:
        try:
            runtime_logs.configure(form, "debug", stream)
            with serving(tls_directory, {"/mutate": Answering(fault)}) as running, running.client() as client:
                assert client.review(review(uid="u-1", object=secret_pod())).status == 500
        finally:
            root.handlers[:] = before
            root.setLevel(level)
    text = (tmp_path / "log").read_text()
    assert "review failed" in text
    assert "u-1" in text
    assert "ValueError" in text
    assert "serving.py" in text
    assert "hunter2" not in text
