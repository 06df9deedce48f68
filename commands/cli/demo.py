"""`make run`: starts the server standalone, and sends one pod as the API server would."""

import asyncio
import base64
import dataclasses
import http.client
import json
import logging
import os
import ssl
import time
import uuid
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import click

from commands.cli.streams import write
from commands.objects.text_edits import TextLayout
from policies.patching.json_patch import patched
from runtime import console, listening
from runtime.startup import StartupError
from runtime.yaml_nodes import YamlError, compose
from webhook.server import app, settings
from webhook.server.command import ServerCommand, run, with_settings
from webhook.server.standalone import MemoryTemplates

_EXAMPLES: Final = Path(__file__).resolve().parents[2] / "deploy/examples"
EXAMPLE: Final = _EXAMPLES / "legacy-pod/pod.yaml"
REFUSED: Final = _EXAMPLES / "seven-devices/pod.yaml"
"""Shown after the default example: a count that no assumed family can serve."""

_NAMESPACE: Final = "default"
_READY_WITHIN: Final = 10.0
_POLL: Final = 0.05


@click.command(cls=ServerCommand)
@click.option("--once", is_flag=True, help="Stop after the example was shown.")
@click.option("--pod", "pod_file", type=click.Path(path_type=Path), default=EXAMPLE, help="Pod manifest to show.")
@with_settings
def main(*, once: bool, pod_file: Path, **flags: object) -> None:
    """Serve the webhook standalone and show how it converts an example pod.

    Accepts every setting of `neuron-dra webhook`.
    """
    chosen = settings.load({**flags, "standalone": True}, os.environ)
    pod = _read(pod_file)
    run(_demonstrate(chosen, pod_file, pod, once=once), chosen)


async def _demonstrate(chosen: settings.WebhookSettings, pod_file: Path, pod: dict[str, object], *, once: bool) -> None:
    # The demonstration prints what the server would log at its start.
    logging.getLogger("webhook").setLevel(logging.WARNING)
    async with app.assemble(chosen) as service:
        with listening.on_signals(service.stop):
            serving = asyncio.create_task(service.run())
            shown = False
            review_file = chosen.tls_dir.parent / "review.json"
            try:
                families = ", ".join(chosen.families) or "none"
                _say(f"There is no cluster. The webhook assumes nodes of these families (--families): {families}.\n")
                await asyncio.to_thread(_show, service, pod_file, pod, review_file)
                if pod_file == EXAMPLE:
                    await asyncio.to_thread(_show_refusal, service)
                if once:
                    _say("The example is over, and the webhook stops. `make run` keeps it serving.")
                else:
                    _show_commands(service, review_file)
                shown = True
            finally:
                if once or not shown:
                    service.stop()
                await serving


def _show(service: app.RunningWebhook, pod_file: Path, pod: dict[str, object], review_file: Path) -> None:
    client = _Client(service.url, service.ca)
    client.wait_until_ready()
    review = json.dumps(_review(pod), indent=2)
    review_file.write_text(review, encoding="utf-8")
    response = client.post_review(review)
    _print("What the user applies", pod_file.read_text(encoding="utf-8"))
    if not response["allowed"]:
        _print("The webhook refuses it", _yaml(response["status"]))
    for warning in response.get("warnings", ()):
        _say(f"Warning: {warning}")
    if "patch" in response:
        patch = json.loads(base64.b64decode(response["patch"]))
        _print("What the webhook changes (JSON patch)", _yaml(patch))
        _print("What the cluster stores", _yaml(patched(pod, patch)))
    if isinstance(service.backend.templates, MemoryTemplates):
        for namespace, template in service.backend.templates:
            _print("What the webhook creates before it answers", _yaml(template.manifest(namespace)))


def _show_refusal(service: app.RunningWebhook) -> None:
    response = _Client(service.url, service.ca).post_review(json.dumps(_review(_read(REFUSED))))
    text = response["status"]["message"] if not response["allowed"] else "It is admitted with these families."
    _print("The answer to a pod that requests seven devices", f"{text}\n")


def _show_commands(service: app.RunningWebhook, review_file: Path) -> None:
    ca = service.ca
    _say(f"The webhook serves {service.url}; Ctrl-C stops it. Try:\n")
    _say(f"  curl --cacert {ca} '{service.url}/readyz?verbose'")
    _say(f"  curl --cacert {ca} -H 'Content-Type: application/json' --data @{review_file} {service.url}/mutate")
    if service.metrics_url:
        _say(f"  curl {service.metrics_url}")


@dataclasses.dataclass(frozen=True, slots=True)
class _Client:
    """Calls the server as the API server does: over TLS, verified with the CA."""

    url: str
    ca: Path

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + _READY_WITHIN
        while True:
            status, answer = self._request("GET", "/readyz", None)
            if status == http.client.OK:
                return
            if time.monotonic() > deadline:
                raise StartupError(f"The webhook is not ready after {_READY_WITHIN:g} s: {answer.decode()}")
            time.sleep(_POLL)

    def post_review(self, review: str) -> dict[str, Any]:
        status, answer = self._request("POST", "/mutate", review.encode())
        if status != http.client.OK:
            raise StartupError(f"The webhook answered the example with HTTP {status}: {answer.decode()}")
        response: dict[str, object] = json.loads(answer)["response"]
        return response

    def _request(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        address = urlsplit(self.url)
        context = ssl.create_default_context(cafile=self.ca)
        connection = http.client.HTTPSConnection(address.hostname or "", address.port, timeout=5, context=context)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise StartupError(f"The webhook does not answer at {self.url}: {error!r}.") from error
        finally:
            connection.close()


def _read(path: Path) -> dict[str, object]:
    try:
        root = compose(path.read_text(encoding="utf-8"))
    except (OSError, YamlError) as error:
        raise StartupError(f"Cannot read the example {path}: {error}. Choose another with --pod.") from error
    pod = root and root.value
    if not isinstance(pod, dict) or pod.get("kind") != "Pod":
        raise StartupError(f"The example {path} is not a Pod. Choose another with --pod.")
    return pod


def _review(pod: dict[str, Any]) -> dict[str, object]:
    """The AdmissionReview that the API server sends on `kubectl apply`."""
    metadata = pod.get("metadata") or {}
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": str(uuid.uuid4()),
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "name": metadata.get("name", ""),
            "namespace": metadata.get("namespace", _NAMESPACE),
            "operation": "CREATE",
            "object": pod,
            "oldObject": None,
            "dryRun": False,
        },
    }


def _yaml(value: object) -> str:
    return TextLayout(dash=2).document(value)


def _print(title: str, text: str) -> None:
    _say(f"# {title}\n\n{text}")


def _say(line: str) -> None:
    write(f"{line}\n")


if __name__ == "__main__":
    console.guard()
    main()
