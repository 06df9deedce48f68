"""A collector of traces: an OTLP receiver over HTTP."""

import http.server
import threading
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Receiver:
    """Keeps what it is sent, until it is closed."""

    def __init__(self) -> None:
        received = self.received = list[tuple[dict[str, str], bytes]]()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == "/v1/traces"
                headers = {name.lower(): value for name, value in self.headers.items()}
                received.append((headers, self.rfile.read(int(headers["content-length"]))))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def resources(self) -> list[Any]:
        """Spans with their resource, as they were sent."""
        return [
            resource
            for _, body in self.received
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans
        ]

    def spans(self) -> dict[str, Any]:
        """Spans by name."""
        return {
            span.name: span for resource in self.resources() for scope in resource.scope_spans for span in scope.spans
        }

    def close(self) -> None:
        """Stop."""
        self._server.shutdown()
        self._server.server_close()
