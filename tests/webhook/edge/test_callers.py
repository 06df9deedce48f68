"""Client certificates: which clients may send reviews, over real TLS."""

import asyncio
import contextlib
import datetime as dt
import http.client
import logging
import os
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from certs.material import KeyPair
from runtime.startup import StartupError
from tests.support.client_certificates import Authority, authority
from tests.support.serving import Answering, Client, Running, eventually, make_certificates, review, serving
from webhook.edge import server
from webhook.edge.callers import Callers, ClientAuthority, names_of
from webhook.server import app
from webhook.server.settings import WebhookSettings
from webhook.serving_certificate.live import LiveCertificate


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority(tmp_path_factory.mktemp("ours"), "ours")


@pytest.fixture(scope="module")
def running(tls_directory: Path, ours: Authority) -> Iterator[Running]:
    with serving(
        tls_directory, {"/mutate": Answering()}, client_ca=ours.file, client_names=("kube-apiserver", "api.example")
    ) as started:
        yield started


def client(running: Running, pair: tuple[Path, Path] | None) -> Client:
    connected = running.client()
    if pair is not None:
        connected.context.load_cert_chain(*pair)
    return connected


@pytest.mark.parametrize(
    ("common_name", "dns"), [("kube-apiserver", ""), ("another", "api.example")], ids=["common-name", "dns-name"]
)
def test_a_client_with_a_listed_name_is_answered(running: Running, ours: Authority, common_name: str, dns: str) -> None:
    with client(running, ours.client(common_name, dns=dns)) as connected:
        assert [connected.review(review()).status for _ in range(3)] == [200, 200, 200]


def test_a_client_without_a_certificate_gets_403(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    before = running.metrics.path("/mutate").errors.get(403, 0)
    with client(running, None) as connected:
        reply = connected.review(review())
    assert (reply.status, reply.json["message"]) == (
        403,
        "Reviews need a client certificate that a CA of --client-ca signed; this connection has none.",
    )
    assert reply.headers["connection"] == "close"
    assert running.metrics.path("/mutate").errors[403] == before + 1
    assert any(vars(record).get("status") == 403 for record in caplog.records)


def test_a_client_with_another_name_gets_403(running: Running, ours: Authority) -> None:
    with client(running, ours.client("mallory", dns="mallory.example")) as connected:
        reply = connected.review(review())
    assert (reply.status, reply.json["message"]) == (
        403,
        "The client certificate is for mallory, mallory.example, which --client-name does not list.",
    )


def test_every_verified_certificate_is_accepted_without_listed_names(tls_directory: Path, ours: Authority) -> None:
    with (
        serving(tls_directory, {"/mutate": Answering()}, client_ca=ours.file) as running,
        client(running, ours.client("anybody")) as connected,
    ):
        assert connected.review(review()).status == 200


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
def test_probes_need_no_certificate(running: Running, path: str) -> None:
    with client(running, None) as connected:
        assert connected.get(path).status == 200


def test_a_certificate_of_another_ca_ends_the_handshake(running: Running, tmp_path: Path) -> None:
    failed = running.acceptor.failed
    with (
        client(running, authority(tmp_path, "theirs").client("kube-apiserver")) as connected,
        pytest.raises((ssl.SSLError, ConnectionError)),
    ):
        connected.review(review())
    eventually(lambda: running.acceptor.failed == failed + 1, "the handshake is counted")


def test_an_expired_certificate_ends_the_handshake(running: Running, ours: Authority) -> None:
    expired = ours.client("kube-apiserver", age=dt.timedelta(hours=2), left=-dt.timedelta(hours=1))
    failed = running.acceptor.failed
    with client(running, expired) as connected, pytest.raises((ssl.SSLError, ConnectionError)):
        connected.review(review())
    eventually(lambda: running.acceptor.failed == failed + 1, "the handshake is counted")


def test_sessions_are_not_resumed(running: Running, ours: Authority) -> None:
    with client(running, ours.client("kube-apiserver")) as connected:
        connected.review(review())
        session = connected.connection.sock.session
    assert session is None or not session.has_ticket


def test_no_certificate_is_requested_without_a_client_ca(tls_directory: Path) -> None:
    with serving(tls_directory, {"/mutate": Answering()}) as running, running.client() as connected:
        assert connected.review(review()).status == 200


def test_a_ca_that_joins_the_file_is_trusted_without_a_restart(tls_directory: Path, tmp_path: Path) -> None:
    old, new = authority(tmp_path, "old"), authority(tmp_path, "new")
    file = old.file
    with serving(tls_directory, {"/mutate": Answering()}, client_ca=file) as running:
        with client(running, old.client("a")) as connected:
            assert connected.review(review()).status == 200
            file.write_bytes(old.pem + new.pem)

            def trusted() -> bool:
                try:
                    with client(running, new.client("a")) as later:
                        return later.review(review()).status == 200
                except (ssl.SSLError, ConnectionError):
                    return False

            eventually(trusted, "the new CA is trusted")
        with client(running, old.client("a")) as again:
            assert again.review(review()).status == 200


def context() -> ssl.SSLContext:
    return ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)


def test_a_ca_that_is_removed_from_the_file_is_not_trusted(tls_directory: Path, tmp_path: Path) -> None:
    old, new = authority(tmp_path, "old"), authority(tmp_path, "new")
    file = tmp_path / "both.crt"
    file.write_bytes(old.pem + new.pem)
    with (
        serving(tls_directory, {"/mutate": Answering()}, client_ca=file) as running,
        client(running, old.client("a")) as before,
        client(running, new.client("b")) as kept,
    ):
        assert before.review(review()).status == kept.review(review()).status == 200
        file.write_bytes(new.pem)

        def trusted() -> bool:
            try:
                with client(running, old.client("a")) as later:
                    return later.review(review()).status == 200
            except (ssl.SSLError, ConnectionError, http.client.RemoteDisconnected):
                return False

        eventually(lambda: not trusted(), "the old CA is trusted no more")
        # The connection that was let in by it has been closed; http.client would open another by itself.
        before.connection.auto_open = 0
        with pytest.raises((ConnectionError, http.client.HTTPException, ssl.SSLError)):
            before.review(review())
        with client(running, new.client("b")) as again:
            assert again.review(review()).status == 200


def test_a_handshake_that_began_before_a_ca_was_removed_is_closed(tls_directory: Path, tmp_path: Path) -> None:
    old, new = authority(tmp_path, "old"), authority(tmp_path, "new")
    file = tmp_path / "both.crt"
    file.write_bytes(old.pem + new.pem)
    with serving(tls_directory, {"/mutate": Answering()}, client_ca=file) as running:
        host, port = running.url.removeprefix("https://").split(":")
        context = ssl.create_default_context(cafile=str(running.certificates.ca))
        context.load_cert_chain(*old.client("a"))
        with socket.create_connection((host, int(port)), timeout=60) as plain:
            eventually(lambda: running.acceptor.open == 1, "its handshake has begun")
            tls = running.acceptor.tls
            file.write_bytes(new.pem)
            eventually(lambda: running.acceptor.tls is not tls, "the CA is removed")
            answer = b""
            with (
                contextlib.suppress(ConnectionError, ssl.SSLError),
                context.wrap_socket(plain, server_hostname="localhost") as late,
            ):
                late.sendall(b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
                answer = late.recv(4096)
            assert answer == b"", "the connection has ended before the request was heard"


def test_a_renewed_serving_certificate_is_served_by_the_context_of_new_cas(tls_directory: Path, tmp_path: Path) -> None:
    old, new = authority(tmp_path, "old"), authority(tmp_path, "new")
    file = old.file
    live = LiveCertificate(server.bare_context("1.3"))
    pairs = []
    for name in ("first", "second"):
        made = make_certificates(tmp_path / name)
        pairs.append(KeyPair(made.certificate.read_bytes(), made.key.read_bytes()))
    live.load(pairs[0])

    def fresh() -> ssl.SSLContext:
        live.move_to(server.bare_context("1.3"))
        return live.context

    followed = ClientAuthority(file, live.context, fresh)
    first = followed.tls
    file.write_bytes(new.pem)
    assert followed.follow()
    assert followed.tls is live.context is not first
    assert [len(tls.get_ca_certs()) for tls in (first, followed.tls)] == [1, 1]
    assert followed.tls.get_ca_certs(binary_form=True) != first.get_ca_certs(binary_form=True)
    live.load(pairs[1])
    assert live.digest
    assert not followed.follow()


def test_a_file_that_is_written_again_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ours = authority(tmp_path, "ours")
    followed = ClientAuthority(ours.file, context(), context)
    first = followed.tls
    for content in (b"rubbish", ours.pem):
        ours.file.write_bytes(content)
        assert not followed.follow()
    assert followed.tls is first
    assert followed.problem == ""
    assert "client CA reloaded" not in caplog.text


def test_a_fifo_instead_of_the_file_does_not_block(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = authority(tmp_path, "ours").file
    followed = ClientAuthority(file, context(), context)
    file.unlink()
    os.mkfifo(file)
    assert not followed.follow()
    assert "it is not a regular file" in str([vars(record) for record in caplog.records])
    assert len(followed.tls.get_ca_certs()) == 1
    with pytest.raises(StartupError, match="it is not a regular file"):
        ClientAuthority(file, context(), context)


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"rubbish \xff", "it holds no PEM certificate"), (None, "No such file or directory")],
    ids=["no-pem", "gone"],
)
def test_an_unusable_file_keeps_the_trusted_cas(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes | None, reason: str
) -> None:
    tls = context()
    file = authority(tmp_path, "ours").file
    followed = ClientAuthority(file, tls, context)
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    with caplog.at_level(logging.ERROR):
        assert not followed.follow()
        assert not followed.follow()
    said = [vars(record) for record in caplog.records]
    assert [record["reason"] for record in said] == [f"The client CA file {file} cannot be used: {reason}."]
    assert len(tls.get_ca_certs()) == 1


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"", "it holds no PEM certificate"), (None, "No such file or directory")],
    ids=["empty", "missing"],
)
def test_a_server_does_not_start_with_a_file_that_it_cannot_use(
    tmp_path: Path, content: bytes | None, reason: str
) -> None:
    file = tmp_path / "ca.crt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(StartupError) as error:
        ClientAuthority(file, context(), context)
    assert str(error.value) == f"The client CA file {file} cannot be used: {reason}. Check --client-ca."


def test_names_without_a_ca_are_refused_at_start(tls_directory: Path) -> None:
    async def scenario() -> None:
        settings = WebhookSettings(
            standalone=True, tls_dir=tls_directory, client_name=("kube-apiserver",), metrics_port=0
        )
        async with app.assemble(settings):
            raise AssertionError("it started")

    with pytest.raises(StartupError) as error:
        asyncio.run(scenario())
    assert str(error.value) == (
        "--client-name needs --client-ca: only names in a verified certificate count. Set --client-ca to the file of "
        "the CA, or remove --client-name."
    )


def test_a_certificate_without_names_is_refused() -> None:
    assert Callers(["a"]).refusal({"state": {"client_names": ()}}) == (
        "The client certificate is for no name, which --client-name does not list."
    )


def test_no_connection_has_no_names() -> None:
    assert names_of(None) is None
