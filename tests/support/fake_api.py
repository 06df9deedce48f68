"""An API server's list, watch, get, create, patch and delete on a loopback socket, with the faults a test asks for.

The wire is the real one (chunked watches, `metav1.Status`, `410 Expired` in both forms, bookmarks); its words are
those of kube-apiserver 1.36.
"""

import asyncio
import contextlib
import dataclasses
import datetime as dt
import email.utils
import ipaddress
import itertools
import json
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Self

import jsonpatch
from aiohttp import web
from anyio.from_thread import start_blocking_portal
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

Object = dict[str, Any]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_VERBS = {"POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}
_EXPIRED = "The resourceVersion for the provided watch is too old."


def status(code: int, reason: str, message: str, **details: Any) -> Object:
    """A `metav1.Status`."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "details": details,
        "code": code,
    }


def answer(code: int, reason: str, message: str, *, headers: dict[str, str] | None = None, **details: Any) -> Handler:
    """A handler that answers with a Status."""

    async def handle(request: web.Request) -> web.StreamResponse:
        return web.json_response(status(code, reason, message, **details), status=code, headers=headers)

    return handle


def raw(code: int, body: bytes) -> Handler:
    """A handler that answers with these bytes."""

    async def handle(request: web.Request) -> web.StreamResponse:
        return web.Response(status=code, body=body)

    return handle


async def hang(request: web.Request) -> web.StreamResponse:
    """Never answer."""
    await asyncio.sleep(3600)
    raise AssertionError("unreachable")


async def hang_up(request: web.Request) -> web.StreamResponse:
    """Break the connection without an answer."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


@dataclasses.dataclass(frozen=True)
class Seen:
    """A request as it arrived."""

    verb: str
    plural: str
    namespace: str
    query: dict[str, str]
    token: str
    accept: str = ""


@dataclasses.dataclass
class _Fault:
    verb: str
    plural: str
    handler: Handler
    times: int


class FakeApi:
    """One API server. Objects are put and removed by the test; whatever watches learns of it.

    Attributes:
        url: where it listens.
        seen: requests in order.
        tokens: bearer tokens that are accepted; None: anything is.
        piece: watches are written in pieces of this many bytes.
        unserved: API groups that answer 404.
        kinds: (group, version, kind, plural, is it namespaced) of the discovery document.
        version: of Kubernetes.
        logs: of pods, by namespace and name.
        ahead: how far its clock is ahead of ours, as the Date of its answers says.
        store: makes of a created object what is stored, e.g. without the fields of a feature gate that is off.
    """

    def __init__(self) -> None:
        self.url = ""
        self.seen: list[Seen] = []
        self.tokens: set[str] | None = None
        self.piece = 1 << 20
        self.unserved: set[str] = set()
        self.kinds: list[tuple[str, str, str, str, bool]] = []
        self.version = "v1.37.0"
        self.logs: dict[tuple[str, str], str] = {}
        self.store: Callable[[Object], Object] = lambda item: item
        self._versions = itertools.count(1000)
        self._version = 999
        self._oldest = 0
        self._objects: dict[str, dict[tuple[str, str], Object]] = {}
        self._history: list[tuple[int, str, str, Object]] = []
        self._watchers: dict[asyncio.Queue[bytes | None], tuple[str, web.Request]] = {}
        self._faults: list[_Fault] = []
        self._pages: dict[str, tuple[str, list[Object], int]] = {}
        self.ahead = dt.timedelta(0)

    # --- what a test does -------------------------------------------------------------------------------

    def put(self, plural: str, item: Object) -> Object:
        """Create or replace an object."""
        metadata = item["metadata"]
        key = metadata.get("namespace", ""), metadata["name"]
        known = self._objects.setdefault(plural, {})
        event = "MODIFIED" if key in known else "ADDED"
        return self._record(plural, event, key, item)

    def remove(self, plural: str, name: str, namespace: str = "") -> None:
        """Delete an object."""
        self._record(plural, "DELETED", (namespace, name), self._objects[plural].pop((namespace, name)))

    def get(self, plural: str, name: str, namespace: str = "") -> Object:
        """An object as it is stored."""
        return self._objects[plural][namespace, name]

    def fault(self, verb: str, plural: str, handler: Handler, times: int = 1) -> None:
        """Have the next `times` requests answered by `handler`.

        `verb` is list, continue, watch, get, create, patch or delete.
        """
        self._faults.append(_Fault(verb, plural, handler, times))

    def heal(self) -> None:
        """Forget all faults."""
        self._faults.clear()

    def forbid(self, verb: str, plural: str, group: str = "", user: str = "nobody", times: int = 1000) -> None:
        """Refuse a verb on a resource with the message of RBAC."""
        dotted = f"{plural}.{group}" if group else plural
        where = "at the cluster scope" if verb != "create" else 'in the namespace "team"'
        message = (
            f'{dotted} is forbidden: User "{user}" cannot {verb} resource "{plural}" in API group "{group}" {where}'
        )
        self.fault(verb, plural, answer(403, "Forbidden", message, group=group, kind=plural), times)

    def compact(self) -> None:
        """Forget history: watches that resume from before now are answered 410."""
        self._oldest = self._version = next(self._versions)

    def bookmark(self, plural: str) -> str:
        """Send a bookmark to the watches of a collection; its resourceVersion."""
        self._version = next(self._versions)
        self._broadcast(plural, "BOOKMARK", {"metadata": {"resourceVersion": str(self._version)}})
        return str(self._version)

    def emit(self, plural: str, line: bytes) -> None:
        """Send bytes to the watches of a collection as they are."""
        for queue, (watched, _) in self._watchers.items():
            if watched == plural:
                queue.put_nowait(line)

    def error(self, plural: str, code: int, reason: str, message: str = _EXPIRED) -> None:
        """Send an ERROR event to the watches of a collection."""
        self._broadcast(plural, "ERROR", status(code, reason, message))

    def end_watches(self) -> None:
        """End all watches in good order, as their time-out does."""
        for queue in self._watchers:
            queue.put_nowait(None)

    def break_watches(self) -> None:
        """Cut the connections of all watches."""
        for _, request in self._watchers.values():
            assert request.transport is not None
            request.transport.abort()

    def watching(self, plural: str) -> int:
        """How many watches of a collection stand."""
        return sum(watched == plural for watched, _ in self._watchers.values())

    def kubeconfig(self, folder: Path, namespace: str = "default") -> Path:
        """Write a kubeconfig that names this server, and a namespace for commands that are given none."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "main",
            "contexts": [{"name": "main", "context": {"cluster": "c", "user": "u", "namespace": namespace}}],
            "clusters": [{"name": "c", "cluster": {"server": self.url}}],
            "users": [{"name": "u", "user": {}}],
        }
        path = folder / "kubeconfig"
        path.write_text(json.dumps(config))
        return path

    def calls(self, verb: str, plural: str) -> list[Seen]:
        """Requests of one verb for one collection."""
        return [seen for seen in self.seen if (seen.verb, seen.plural) == (verb, plural)]

    # --- what clients see -------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def serve(self, context: ssl.SSLContext | None = None) -> AsyncIterator[Self]:
        """Listen on a free port of 127.0.0.1."""
        app = web.Application()
        app.on_response_prepare.append(self._date)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
            await site.start()
            port = runner.addresses[0][1]
            self.url = f"{'https' if context else 'http'}://127.0.0.1:{port}"
            yield self
        finally:
            self.end_watches()
            await runner.cleanup()

    @contextlib.contextmanager
    def serve_in_thread(self) -> Iterator[Self]:
        """Serve from another thread, for a command that runs an event loop of its own in this one."""
        with start_blocking_portal() as portal, portal.wrap_async_context_manager(self.serve()):
            yield self

    async def _date(self, _: web.Request, response: web.StreamResponse) -> None:
        now = dt.datetime.now(dt.UTC) + self.ahead
        response.headers["Date"] = email.utils.format_datetime(now, usegmt=True)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/version" or (request.path.startswith("/apis") and request.path.count("/") < 3):
            return self._discovery(request)
        parts = request.path.strip("/").split("/")
        group, rest = (parts[1], parts[3:]) if parts[0] == "apis" else ("", parts[2:])
        namespace = ""
        if rest[0] == "namespaces" and len(rest) > 2:
            namespace, rest = rest[1], rest[2:]
        plural, name = rest[0], rest[1] if len(rest) > 1 else ""
        verb = self._verb(request, plural, namespace, name)
        token = request.headers.get("Authorization", "").removeprefix("Bearer ").removeprefix("bearer ")
        self.seen.append(Seen(verb, plural, namespace, dict(request.query), token, request.headers.get("Accept", "")))
        handler = self._fault_for(verb, plural)
        if handler is not None:
            return await handler(request)
        if self.tokens is not None and token not in self.tokens:
            return await answer(401, "Unauthorized", "Unauthorized")(request)
        if group in self.unserved:
            return web.Response(status=404, text="404 page not found\n")
        if verb == "watch":
            return await self._watch(request, plural)
        if verb == "create":
            return await self._create(request, plural, namespace)
        if rest[2:] == ["log"]:
            return web.Response(text=self.logs[namespace, name])
        if name:
            return await self._one(request, verb, plural, namespace, name)
        return self._list(request, plural)

    def _verb(self, request: web.Request, plural: str, namespace: str, name: str) -> str:
        """As RBAC names it. Server-side apply creates what does not exist."""
        if request.query.get("watch"):
            return "watch"
        if request.query.get("continue"):
            return "continue"
        applied = request.content_type == "application/apply-patch+yaml"
        if applied and (namespace, name) not in self._objects.get(plural, {}):
            return "create"
        return _VERBS.get(request.method) or ("get" if name else "list")

    async def _one(self, request: web.Request, verb: str, plural: str, namespace: str, name: str) -> web.Response:
        found = self._get(plural, namespace, name)
        if verb == "get" or found.status != 200:
            return found
        if verb == "patch":
            return await self._patch(request, plural, namespace, name)
        if verb == "update":
            return await self._update(request, plural, namespace, name)
        metadata = self.get(plural, name, namespace)["metadata"]
        conditions = (json.loads(await request.read() or b"{}")).get("preconditions", {})
        if any(metadata.get(field) != value for field, value in conditions.items()):
            return _conflict(plural, name, f"Precondition failed: {conditions}")
        self.remove(plural, name, namespace)
        return found

    def _fault_for(self, verb: str, plural: str) -> Handler | None:
        for fault in self._faults:
            if fault.verb == verb and fault.plural == plural and fault.times > 0:
                fault.times -= 1
                return fault.handler
        return None

    def _list(self, request: web.Request, plural: str) -> web.Response:
        token = request.query.get("continue", "")
        if token:
            version, items, start = self._pages.pop(token)
        else:
            version, start = str(self._version), 0
            inside = re.search("/namespaces/([^/]+)/", request.path)
            everything = sorted(self._objects.get(plural, {}).items())
            items = [item for key, item in everything if inside is None or key[0] == inside[1]]
        metadata = {"resourceVersion": version}
        end = start + (int(request.query.get("limit", "0")) or len(items))
        if end < len(items):
            metadata["continue"] = f"{plural}-{version}-{end}"
            self._pages[metadata["continue"]] = (version, items, end)
        return web.json_response({"kind": "List", "metadata": metadata, "items": items[start:end]})

    def _get(self, plural: str, namespace: str, name: str) -> web.Response:
        item = self._objects.get(plural, {}).get((namespace, name))
        if item is None:
            return web.json_response(status(404, "NotFound", f'{plural} "{name}" not found', kind=plural), status=404)
        return web.json_response(item)

    async def _create(self, request: web.Request, plural: str, namespace: str) -> web.Response:
        item = self.store(await request.json())
        key = namespace, item["metadata"]["name"]
        if key in self._objects.get(plural, {}):
            message = f'{plural} "{key[1]}" already exists'
            return web.json_response(status(409, "AlreadyExists", message, kind=plural, name=key[1]), status=409)
        item["metadata"]["namespace"] = namespace
        return web.json_response(self.put(plural, item), status=201)

    async def _update(self, request: web.Request, plural: str, namespace: str, name: str) -> web.Response:
        item = await request.json()
        if item["metadata"]["resourceVersion"] != self.get(plural, name, namespace)["metadata"]["resourceVersion"]:
            return _conflict(plural, name, "the object has been modified")
        return web.json_response(self.put(plural, item))

    def _discovery(self, request: web.Request) -> web.Response:
        """The version, or the aggregated discovery document (APIGroupDiscoveryList)."""
        if request.path == "/version":
            return web.json_response({"gitVersion": self.version})
        asked = request.path.removeprefix("/apis").strip("/")
        if asked:
            served = any(group == asked for group, *_ in self.kinds)
            return web.json_response({"kind": "APIGroup", "name": asked}, status=200 if served else 404)
        self.seen.append(Seen("get", "apis", "", dict(request.query), "", request.headers.get("Accept", "")))
        groups: dict[str, dict[str, list[Object]]] = {}
        for group, version, kind, plural, namespaced in self.kinds:
            each = {
                "resource": plural,
                "responseKind": {"group": group, "version": version, "kind": kind},
                "scope": "Namespaced" if namespaced else "Cluster",
                "verbs": ["create", "get", "list", "update", "delete"],
            }
            groups.setdefault(group, {}).setdefault(version, []).append(each)
        items = [
            {
                "metadata": {"name": group},
                "versions": [{"version": version, "resources": found} for version, found in versions.items()],
            }
            for group, versions in groups.items()
        ]
        return web.json_response({"kind": "APIGroupDiscoveryList", "metadata": {}, "items": items})

    async def _patch(self, request: web.Request, plural: str, namespace: str, name: str) -> web.Response:
        item = self._objects[plural][namespace, name]
        patch = await request.json()
        if request.content_type == "application/json-patch+json":
            patched = jsonpatch.apply_patch(item, patch)
        else:
            assert request.content_type in ("application/merge-patch+json", "application/apply-patch+yaml")
            patched = _merged(item, patch)
        if any(patched["metadata"].get(field) != item["metadata"].get(field) for field in ("resourceVersion", "uid")):
            return _conflict(plural, name, "the object has been modified")
        if patched == item:
            return web.json_response(item)
        return web.json_response(self.put(plural, patched))

    async def _watch(self, request: web.Request, plural: str) -> web.StreamResponse:
        since = int(request.query["resourceVersion"])
        if since < self._oldest:
            return await answer(410, "Expired", _EXPIRED)(request)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        for version, watched, event, item in self._history:
            if watched == plural and version > since:
                queue.put_nowait(_line(event, item))
        self._watchers[queue] = (plural, request)
        try:
            await response.prepare(request)
            while (line := await queue.get()) is not None:
                for start in range(0, len(line), self.piece):
                    await response.write(line[start : start + self.piece])
                    await asyncio.sleep(0)
            await response.write_eof()
        finally:
            del self._watchers[queue]
        return response

    def _record(self, plural: str, event: str, key: tuple[str, str], item: Object) -> Object:
        self._version = next(self._versions)
        stamped = {**item, "metadata": {**item["metadata"], "resourceVersion": str(self._version)}}
        if event != "DELETED":
            self._objects[plural][key] = stamped
        self._history.append((self._version, plural, event, stamped))
        self._broadcast(plural, event, stamped)
        return stamped

    def _broadcast(self, plural: str, event: str, item: Object) -> None:
        self.emit(plural, _line(event, item))


def _conflict(plural: str, name: str, why: str) -> web.Response:
    message = f'Operation cannot be fulfilled on {plural} "{name}": {why}'
    return web.json_response(status(409, "Conflict", message, kind=plural, name=name), status=409)


def _merged(item: Any, patch: Any) -> Any:
    """RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(item) if isinstance(item, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merged(merged.get(key), value)
    return merged


def _line(event: str, item: Object) -> bytes:
    return json.dumps({"type": event, "object": item}).encode() + b"\n"


async def eventually(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Return as soon as `condition` holds.

    Raises:
        TimeoutError: it never did.
    """
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.002)


def server_certificate(directory: Path) -> tuple[ssl.SSLContext, Path]:
    """A TLS context for 127.0.0.1, and the file with the certificate that clients have to trust."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fake kube-apiserver")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(minutes=1))
        .not_valid_after(now + dt.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    authority, private = directory / "apiserver.crt", directory / "apiserver.key"
    authority.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority, private)
    return context, authority
