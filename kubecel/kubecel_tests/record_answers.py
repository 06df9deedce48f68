"""Evaluate every expression of expressions.txt in a real API server, and write kubernetes_answers.json.

Every expression becomes a ValidatingAdmissionPolicy that denies one Pod, told by its name, with a message that holds
the value. Run by hand (`python kubecel_tests/record_answers.py`) when expressions are added; needs etcd and
kube-apiserver in KUBEBUILDER_ASSETS.
"""

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

HERE = Path(__file__).parent
BINARIES = Path(os.environ.get("KUBEBUILDER_ASSETS", "/usr/local/kubebuilder/bin"))
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
CLASSES = "/apis/resource.k8s.io/v1/deviceclasses"
BINDINGS = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
PODS = "/api/v1/namespaces/default/pods"
POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "recorded",
        "namespace": "default",
        "labels": {"app": "train", "team.example.com/name": "ml", "zero": ""},
        "annotations": {"n": "7"},
    },
    "spec": {
        "terminationGracePeriodSeconds": 30,
        "nodeSelector": {"node.kubernetes.io/instance-type": "trn2.48xlarge"},
        "containers": [
            {
                "name": "main",
                "image": "example.com/train:v1",
                "args": ["a", "b"],
                "resources": {
                    "limits": {"cpu": "2", "memory": "1Gi", "aws.amazon.com/neuron": "4"},
                    "requests": {"cpu": "500m", "memory": "1Gi"},
                },
                "securityContext": {"privileged": False, "runAsUser": 1000},
                "env": [{"name": "A", "value": "1"}, {"name": "B"}],
                "ports": [{"containerPort": 8080}],
            },
            {"name": "side", "image": "example.com/side@sha256:abc"},
        ],
        "tolerations": [{"key": "aws.amazon.com/neuron", "operator": "Exists"}],
    },
}


def lines(name: str) -> list[str]:
    found = (HERE / name).read_text(encoding="utf-8").splitlines()
    return list(dict.fromkeys(line for line in found if line and not line.startswith("//")))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def api_server(binaries: Path = BINARIES) -> Iterator[httpx.Client]:
    """An API server without other components, and a client that may do everything."""
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        client_port, peer_port, secure_port = _free_port(), _free_port(), _free_port()
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        pem = serialization.Encoding.PEM
        (home / "sa.key").write_bytes(
            key.private_bytes(pem, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption())
        )
        (home / "sa.pub").write_bytes(
            key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
        )
        (home / "tokens.csv").write_text('recorder,admin,u1,"system:masters"\n')
        etcd = [
            str(binaries / "etcd"),
            f"--data-dir={home}/etcd",
            f"--listen-client-urls=http://127.0.0.1:{client_port}",
            f"--advertise-client-urls=http://127.0.0.1:{client_port}",
            f"--listen-peer-urls=http://127.0.0.1:{peer_port}",
            "--unsafe-no-fsync",
        ]
        server = [
            str(binaries / "kube-apiserver"),
            f"--etcd-servers=http://127.0.0.1:{client_port}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={secure_port}",
            f"--cert-dir={home}/certs",
            f"--token-auth-file={home}/tokens.csv",
            "--authorization-mode=RBAC",
            "--disable-admission-plugins=ServiceAccount",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={home}/sa.pub",
            f"--service-account-signing-key-file={home}/sa.key",
            "--endpoint-reconciler-type=none",
        ]
        processes = [
            subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            for command in (etcd, server)
        ]
        try:
            with httpx.Client(
                base_url=f"https://127.0.0.1:{secure_port}",
                verify=False,  # noqa: S501 - the server makes its own certificate, on loopback
                headers={"Authorization": "Bearer recorder"},
                timeout=30,
            ) as client:
                _wait_until_ready(client)
                yield client
        finally:
            for process in reversed(processes):
                process.kill()
                process.wait()


def _wait_until_ready(client: httpx.Client) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.HTTPError):
            if client.get("/readyz").status_code == httpx.codes.OK:
                return
        time.sleep(0.3)
    raise SystemExit("the API server did not become ready within 60 s")


def policy(
    name: str, condition: str, variables: Mapping[str, str], validations: Sequence[Mapping[str, str]]
) -> dict[str, Any]:
    """A policy for new Pods, with one match condition."""
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [rule]},
            "matchConditions": [{"name": "asked", "expression": condition}],
            "variables": [{"name": each, "expression": text} for each, text in variables.items()],
            "validations": validations,
        },
    }


def shown(expression: str) -> dict[str, str]:
    """The message of a validation: type and value of an expression, for `denial`."""
    return {"messageExpression": f"'%s|%s'.format([dyn(type({expression}\n)), dyn({expression}\n)])"}


def bind(client: httpx.Client, name: str) -> None:
    """Put a policy into force."""
    binding = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    }
    client.post(BINDINGS, json=binding).raise_for_status()


def denial(response: httpx.Response) -> tuple[str, str, str]:
    """What the denial of a Pod says: `value`, type and text, or `error`, nothing and the message.

    Without a type, the text is `?`: the policy shows none, or `format` does not take the value.
    """
    message = response.json()["message"].partition("denied request: ")[2]
    failed = re.search(r"resulted in error: (.*)", message, re.DOTALL)
    if failed:
        return "error", "", failed[1]
    if "running out of cost budget" in message:
        # The server charges a call that fails, too: a negative depth of `flatten` is a large one there.
        return "error", "", message
    kind, bar, text = message.partition("|")
    return ("value", kind, text) if bar and "failed expression" not in kind else ("value", "", "?")


def _policy(name: str, expression: str) -> dict[str, Any]:
    validation = {"expression": "dyn(type(variables.v)) == dyn('impossible')", **shown(expression)}
    return policy(name, f"request.options.fieldManager == '{name}'", {"v": expression}, [validation])


def _answer(client: httpx.Client, name: str) -> dict[str, str]:
    """The answer of the policy with this name, after the server has loaded it."""
    for _ in range(100):
        response = client.post(PODS, params={"dryRun": "All", "fieldManager": name}, json=POD)
        if response.status_code != httpx.codes.CREATED:
            break
        time.sleep(0.2)
    else:
        raise SystemExit(f"policy {name} never answered")
    kind, described, text = denial(response)
    if kind == "error":
        return {"error": text.replace('composited variable "v" fails to evaluate: ', "")}
    return {"type": described, "value": text} if described else {"value": text}


def _refusal(client: httpx.Client, expression: str) -> str | None:
    """The reason for which the server refuses a device selector; None if it accepts it."""
    device_class = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "asked"},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    }
    response = client.post(CLASSES, params={"dryRun": "All"}, json=device_class)
    if response.status_code == httpx.codes.CREATED:
        return None
    message = str(response.json()["message"])
    return message.partition("compilation failed: ERROR: <input>:")[2].partition("\n")[0] or message


def main() -> None:
    answers: dict[str, dict[str, str]] = {}
    with api_server() as client:
        pod = client.post(PODS, params={"dryRun": "All"}, json=POD).json()
        selectors = {expression: _refusal(client, expression) for expression in lines("selectors.txt")}
        waiting: dict[str, str] = {}
        for position, expression in enumerate(lines("expressions.txt")):
            name = f"e{position}"
            try:
                response = client.post(POLICIES, json=_policy(name, expression))
            except httpx.RemoteProtocolError:
                # 1.36.2 panics on optional elements of list and map literals: there is no answer.
                sys.stdout.write(f"the API server broke off while it compiled {expression!r}\n")
                continue
            if response.status_code == httpx.codes.CREATED:
                bind(client, name)
                waiting[expression] = name
                continue
            reason = response.json()["message"].partition("compilation failed: ")[2]
            answers[expression] = {"refused": reason.partition("\n")[0].removeprefix("ERROR: <input>:")}
        for expression, name in waiting.items():
            answers[expression] = _answer(client, name)
        version = client.get("/version").json()["gitVersion"]
    ordered = {expression: answers[expression] for expression in lines("expressions.txt") if expression in answers}
    recorded = {"kubernetes": version, "object": pod, "answers": ordered, "selectors": selectors}
    text = json.dumps(recorded, indent=1, ensure_ascii=False)
    (HERE / "kubernetes_answers.json").write_text(text + "\n", encoding="utf-8")
    sys.stdout.write(f"{len(ordered)} answers of {version}\n")


if __name__ == "__main__":
    main()
