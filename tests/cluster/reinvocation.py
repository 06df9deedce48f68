"""A second mutating webhook, of another product: adds given fields to pods."""

import base64
import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.cluster.api import Object
from tests.cluster.pki import KeyPair


class OtherWebhook:
    """Serves a fixed JSON patch over TLS on loopback, for pods that its condition lets through.

    Args:
        identity: its serving certificate.
        patch: JSON patch operations.
    """

    def __init__(self, identity: KeyPair, patch: list[Object]) -> None:
        encoded = base64.b64encode(json.dumps(patch).encode()).decode()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                review = json.loads(self.rfile.read(int(self.headers["content-length"])))
                answer = {"uid": review["request"]["uid"], "allowed": True}
                answer |= {"patchType": "JSONPatch", "patch": encoded}
                body = json.dumps({**review, "request": None, "response": answer}).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class says so
                """Say nothing: the control plane's logs tell what happened."""

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(identity.certificate, identity.key)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, name="other-webhook", daemon=True)
        self._thread.start()

    def configuration(self, name: str, authority: Path, namespace: str, condition: str) -> Object:
        """A MutatingWebhookConfiguration for the pods of one namespace."""
        port = self._server.server_address[1]
        bundle = base64.b64encode(authority.read_bytes()).decode()
        webhook = {
            "name": f"{name}.example.com",
            "clientConfig": {"url": f"https://127.0.0.1:{port}/", "caBundle": bundle},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
            "matchConditions": [{"name": "only-once", "expression": condition}],
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }
        return {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": name},
            "webhooks": [webhook],
        }

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5)
