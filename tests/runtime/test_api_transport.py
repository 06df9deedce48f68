"""Both programs reach an API server whose certificates have no key identifiers, as those of many clusters.

Python 3.13 and later set VERIFY_X509_STRICT in `ssl.create_default_context`: OpenSSL then refuses such certificates.
The tests set the flag themselves, so that they can fail with an older Python as well.
"""

import asyncio
import contextlib
import datetime as dt
import ipaddress
import json
import ssl
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from kubernetes.aio.client.configuration import Configuration

from kubeletplugin import api_store
from runtime.api_server import COMPACT, UnreachableError
from runtime.api_transport import Connection, load_configuration
from tests.support.serving import ROOT

NODE = {"metadata": {"name": "node-1"}}


def certificate(name: str, issuer: str, key: ec.EllipticCurvePrivateKey, signer: ec.EllipticCurvePrivateKey) -> bytes:
    """A certificate for 127.0.0.1 without key identifiers, as PEM; a CA if it issues itself."""
    now = dt.datetime.now(dt.UTC)
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, each)]) for each in (name, issuer)]
    builder = (
        x509.CertificateBuilder()
        .subject_name(names[0])
        .issuer_name(names[1])
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(minutes=1))
        .not_valid_after(now + dt.timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=name == issuer, path_length=None), critical=True)
    )
    if name != issuer:
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        builder = builder.add_extension(x509.SubjectAlternativeName([address]), critical=False)
    return builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def server_context(directory: Path) -> ssl.SSLContext:
    """The TLS context of an API server; its CA is in `ca.crt`."""
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    (directory / "ca.crt").write_bytes(certificate("ca", "ca", ca_key, ca_key))
    (directory / "tls.crt").write_bytes(certificate("kube-apiserver", "ca", key, ca_key))
    pem = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (directory / "tls.key").write_bytes(key.private_bytes(*pem))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "tls.crt", directory / "tls.key")
    return context


def kubeconfig(directory: Path, port: int) -> Path:
    path = directory / "kubeconfig"
    cluster = {"server": f"https://127.0.0.1:{port}", "certificate-authority": str(directory / "ca.crt")}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"tokenFile": str(directory / "token")}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(content))
    (directory / "token").write_text("secret")
    return path


@pytest.fixture
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default TLS context of Python 3.13."""
    create = ssl.create_default_context

    def strict(*args: object, **options: object) -> ssl.SSLContext:
        context = create(*args, **options)  # type: ignore[arg-type]
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", strict)


class Server:
    """An API server that knows one node.

    Attributes:
        token: the only accepted one.
        tokens: of all requests.
        agents: user agents of all requests.
        sent: content types and bodies of all requests with a body.
    """

    def __init__(self) -> None:
        self.token = "secret"
        self.tokens: list[str] = []
        self.agents: set[str] = set()
        self.sent: list[tuple[str, bytes]] = []

    async def handle(self, request: web.Request) -> web.Response:
        token = request.headers["Authorization"].removeprefix("Bearer ")
        self.tokens.append(token)
        self.agents.add(request.headers["User-Agent"])
        if request.body_exists:
            self.sent.append((request.content_type, await request.read()))
        if token != self.token:
            return web.json_response({"kind": "Status", "code": 401, "message": "Unauthorized"}, status=401)
        return web.json_response(NODE)


def serve(directory: Path, server: Server, scenario: Callable[[Path], Awaitable[None]]) -> None:
    async def run() -> None:
        application = web.Application()
        application.router.add_route("*", "/{tail:.*}", server.handle)
        runner = web.AppRunner(application)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=server_context(directory)).start()
            await scenario(kubeconfig(directory, runner.addresses[0][1]))
        finally:
            await runner.cleanup()

    asyncio.run(run())


async def webhook(path: Path) -> None:
    connection = await Connection.open(lambda: load_configuration(path))
    try:
        assert json.loads(await connection.request("GET", "/api/v1/nodes/node-1", timeout=5)) == NODE
    finally:
        await connection.close()


async def driver(path: Path) -> None:
    api = await api_store.connect(path, "node-1")
    try:
        assert await api.node() == NODE
    finally:
        await api.close()


PROGRAMS = {"webhook": webhook, "kubelet-plugin": driver}


@pytest.mark.usefixtures("_strict")
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_ca_without_key_identifiers_is_accepted(tmp_path: Path, program: str) -> None:
    server = Server()
    serve(tmp_path, server, PROGRAMS[program])
    assert server.agents == {f"neuron-dra-{program}"}


@pytest.mark.usefixtures("_strict")
def test_a_strict_client_refuses_the_same_ca(tmp_path: Path) -> None:
    async def scenario(path: Path) -> None:
        configuration = await load_configuration(path)
        configuration.disable_strict_ssl_verification = False

        async def load() -> Configuration:
            return configuration

        connection = await Connection.open(load)
        try:
            with pytest.raises(UnreachableError, match=r"is not trusted .*Key Identifier"):
                await connection.request("GET", "/api/v1/nodes/node-1", timeout=5)
        finally:
            await connection.close()

    serve(tmp_path, Server(), scenario)


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize(("excluded", "reached"), [("", False), ("127.0.0.1", True)], ids=["proxy", "no-proxy"])
def test_proxies_of_the_environment_hold_with_a_kubeconfig(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, excluded: str, reached: bool
) -> None:
    for name in ("ALL_PROXY", "all_proxy", "HTTPS_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", excluded)
    server = Server()
    with contextlib.nullcontext() if reached else pytest.raises(Exception, match="Connection refused"):
        serve(tmp_path, server, PROGRAMS[program])
    assert bool(server.tokens) is reached


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_proxy_of_a_kubeconfig_is_used(tmp_path: Path, program: str) -> None:
    asked = []

    async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        asked.append(head.split(b"\r\n")[0].decode())
        host, _, port = head.split()[1].decode().rpartition(":")
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))

    async def scenario(path: Path) -> None:
        async with await asyncio.start_server(tunnel, "127.0.0.1", 0) as proxy:
            through(path, proxy.sockets[0].getsockname()[1])
            await PROGRAMS[program](path)

    serve(tmp_path, Server(), scenario)
    assert asked
    assert all(line.startswith("CONNECT ") for line in asked)


def through(path: Path, port: int) -> None:
    content = json.loads(path.read_text())
    content["clusters"][0]["cluster"]["proxy-url"] = f"http://127.0.0.1:{port}"
    path.write_text(json.dumps(content))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while piece := await reader.read(65536):
            writer.write(piece)
            await writer.drain()
    writer.close()


def test_the_plugin_reads_a_rotated_token_again(tmp_path: Path) -> None:
    server = Server()

    async def scenario(path: Path) -> None:
        api = await api_store.connect(path, "node-1")
        try:
            assert await api.node() == NODE
            (tmp_path / "token").write_text("fresh")
            server.token = "fresh"
            assert await api.node() == NODE
        finally:
            await api.close()

    serve(tmp_path, server, scenario)
    assert server.tokens == ["secret", "secret", "fresh"]


def test_a_compact_object_has_no_spaces_and_ordered_fields(tmp_path: Path) -> None:
    """Otherwise the API server would refuse `status.devices` of claims with an opaque config."""

    async def scenario(path: Path) -> None:
        connection = await Connection.open(lambda: load_configuration(path))
        try:
            body = {"spec": {"b": [1, 2], "a": "x y"}}
            await connection.request("POST", "/apis/x", timeout=5, body=body, content_type=COMPACT)
        finally:
            await connection.close()

    server = Server()
    serve(tmp_path, server, scenario)
    assert server.sent == [("application/yaml", b'{"spec":{"a":"x y","b":[1,2]}}')]


def test_the_synchronous_client_is_not_imported(tmp_path: Path) -> None:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "c", "user": {}}],
    }
    (tmp_path / "config").write_text(json.dumps(config))
    script = f"""
import asyncio, sys
from pathlib import Path
from runtime import api_transport

async def main():
    path = Path({str(tmp_path / "config")!r})
    connection = await api_transport.Connection.open(lambda: api_transport.load_configuration(path))
    await connection.close()

asyncio.run(main())
print(sorted({{"kubernetes.client", "requests", "websocket", "requests_oauthlib"}} & set(sys.modules)))
import kubernetes.client
print(kubernetes.client.CoreV1Api.__name__)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["[]", "CoreV1Api"]
