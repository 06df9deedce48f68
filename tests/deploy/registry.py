"""A registry on loopback: what `helm pull` and `skopeo copy` need of the OCI distribution specification."""

import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

from deploy import signing
from deploy.oci import MANIFEST, Layout, digest_of

_PATH: Final = re.compile(r"/v2/(?P<repository>.+)/(?P<kind>manifests|blobs)/(?P<name>[^/?]+)")
_UPLOAD: Final = re.compile(r"/v2/(?P<repository>.+)/blobs/uploads/")


class Registry:
    """Content by repository: blobs and manifests by digest, and tags."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.content: dict[tuple[str, str], bytes] = {}
        self.tags: dict[tuple[str, str], str] = {}

    def upload(self, folder: Path) -> None:
        """Take the images, the chart and the signatures of a release, as `push.sh` copies them."""
        for kind in (signing.IMAGES, signing.SIGNATURES):
            for each in (folder / kind).rglob("oci-layout"):
                layout, repository = Layout(each.parent), str(each.parent.relative_to(folder / kind))
                for tag, descriptor in layout.tags.items():
                    self._take(layout, repository, tag, descriptor["digest"])

    def _take(self, layout: Layout, repository: str, name: str, digest: str) -> None:
        """A manifest with its blobs, or an image index with its manifests."""
        content = layout.read(digest)
        self.put_manifest(repository, name, content)
        about = json.loads(content)
        for manifest in about.get("manifests", ()):
            self._take(layout, repository, manifest["digest"], manifest["digest"])
        for blob in (about["config"], *about["layers"]) if "config" in about else ():
            self.content[repository, blob["digest"]] = layout.read(blob["digest"])

    def manifest(self, repository: str, tag: str) -> bytes:
        return self.content[repository, self.tags.get((repository, tag), tag)]

    def put_manifest(self, repository: str, tag: str, content: bytes) -> str:
        digest = digest_of(content)
        self.content[repository, digest] = content
        if not tag.startswith("sha256:"):
            self.tags[repository, tag] = digest
        return digest


@contextmanager
def serving() -> Iterator[Registry]:  # noqa: C901 - one small method for each HTTP method
    """A registry that listens while the context is open."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments: object) -> None:
            pass

        def _answer(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def do_GET(self) -> None:
            if self.path in ("/v2/", "/v2"):
                return self._answer(200)
            found = _PATH.fullmatch(self.path.partition("?")[0])
            assert found, self.path
            digest = registry.tags.get((found["repository"], found["name"]), found["name"])
            content = registry.content.get((found["repository"], digest))
            if content is None:
                return self._answer(
                    404, b'{"errors": [{"code": "MANIFEST_UNKNOWN"}]}', {"Content-Type": "application/json"}
                )
            kind = "application/octet-stream"
            if found["kind"] == "manifests":
                kind = json.loads(content).get("mediaType", MANIFEST)
            return self._answer(200, content, {"Docker-Content-Digest": digest, "Content-Type": kind})

        do_HEAD = do_GET  # noqa: N815

        def do_POST(self) -> None:
            self._body()
            self._answer(202, headers={"Location": self.path.partition("?")[0] + "1", "Range": "0-0"})

        def do_PATCH(self) -> None:
            parts[self.path] = parts.get(self.path, b"") + self._body()
            self._answer(202, headers={"Location": self.path, "Range": f"0-{len(parts[self.path]) - 1}"})

        def do_PUT(self) -> None:
            body = self._body()
            path, _, query = self.path.partition("?")
            if upload := _UPLOAD.match(path):
                content = parts.pop(path, b"") + body
                registry.content[upload["repository"], digest_of(content)] = content
                assert digest_of(content).removeprefix("sha256:") in query
                return self._answer(201, headers={"Docker-Content-Digest": digest_of(content)})
            found = _PATH.fullmatch(path)
            assert found, path
            digest = registry.put_manifest(found["repository"], found["name"], body)
            return self._answer(201, headers={"Docker-Content-Digest": digest})

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body

    parts: dict[str, bytes] = {}
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    registry = Registry(f"127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
