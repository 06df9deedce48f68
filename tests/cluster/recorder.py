"""A webhook that records the reviews that the API server sends to it, and admits everything."""

import base64
import http.server
import json
import ssl
import threading
from typing import Any, Final

from tests.cluster.api import Object
from tests.cluster.controlplane import ControlPlane

NAME: Final = "recorder.neuron.aws.com"


class Recorder:
    """The webhook; `reviews` are the requests so far."""

    def __init__(self, plane: ControlPlane) -> None:
        self.reviews: list[Object] = []
        recorder = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                review = json.loads(self.rfile.read(int(self.headers["content-length"])))
                recorder.reviews.append(review)
                answer = {**review, "request": None, "response": {"uid": review["request"]["uid"], "allowed": True}}
                body = json.dumps(answer).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - of the base class
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        pair = plane.authority.issue("recorder", "neuron-dra", hosts=["127.0.0.1"])
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.certificate, pair.key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._bundle = base64.b64encode(plane.authority.files.certificate.read_bytes()).decode()
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def configuration(self, user: str) -> Object:
        """A configuration that sends every request of a user, in the version in which it was sent."""
        rule = {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"]}
        url = f"https://127.0.0.1:{self._server.server_address[1]}/"
        webhook = {
            "name": NAME,
            "clientConfig": {"url": url, "caBundle": self._bundle},
            "rules": [rule],
            "matchConditions": [{"name": "user", "expression": f"request.userInfo.username == {user!r}"}],
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "failurePolicy": "Ignore",
        }
        metadata = {"name": NAME}
        kind = "ValidatingWebhookConfiguration"
        return {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": kind,
            "metadata": metadata,
            "webhooks": [webhook],
        }

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
