"""The API server behind a proxy that tells another version of Kubernetes."""

import contextlib
import http.server
import json
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx

from tests.cluster.controlplane import ControlPlane

_OF_CONNECTION: Final = ("connection", "host", "transfer-encoding", "keep-alive")


@contextlib.contextmanager
def telling(plane: ControlPlane, version: str, user: str) -> Iterator[Path]:
    """A kubeconfig for a user. Requests go to the API server with the user's rights, except those for `/version`."""
    given = json.loads(plane.user_kubeconfig(user).read_text())
    identity = given["users"][0]["user"]
    trust = ssl.create_default_context(cafile=str(plane.authority.files.certificate))
    trust.load_cert_chain(identity["client-certificate"], identity["client-key"])
    client = httpx.Client(base_url=plane.server, verify=trust, trust_env=False, timeout=None)

    class Handler(http.server.BaseHTTPRequestHandler):
        def forward(self) -> None:
            self.close_connection = True
            if self.path == "/version":
                body = json.dumps({"major": "1", "gitVersion": version}).encode()
                self.answer(200, {"content-type": "application/json", "content-length": str(len(body))})
                self.wfile.write(body)
                return
            content = self.rfile.read(int(self.headers.get("content-length") or 0))
            headers = {key: value for key, value in self.headers.items() if key.lower() not in _OF_CONNECTION}
            # Either side may go away: a watch has no end of its own.
            with (
                contextlib.suppress(OSError, httpx.HTTPError),
                client.stream(self.command, self.path, headers=headers, content=content) as found,
            ):
                self.answer(found.status_code, found.headers)
                for chunk in found.iter_raw():
                    self.wfile.write(chunk)
                    self.wfile.flush()

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = forward  # noqa: N815 - names of the base class

        def answer(self, status: int, headers: Any) -> None:
            self.send_response(status)
            for key, value in headers.items():
                if key.lower() not in _OF_CONNECTION:
                    self.send_header(key, value)
            self.send_header("connection", "close")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - of the base class
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.block_on_close = False
    pair = plane.authority.issue("proxy", "kube-apiserver", hosts=["127.0.0.1"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        given["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{server.server_address[1]}"
        path = plane.directory / f"{user}-of-another-version.kubeconfig"
        path.touch(mode=0o600)
        path.write_text(json.dumps(given))
        yield path
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        client.close()
