"""A certificate in files that others write, followed without a restart."""

import asyncio
import datetime as dt
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from certs import material
from runtime.api_transport import Connection
from runtime.startup import StartupError
from tests.support.fake_api import FakeApi, eventually
from tests.webhook.server.test_certificates import MUTATING, bundles, configuration
from webhook.edge import server
from webhook.server.certificates import Certificates, keeping
from webhook.server.settings import WebhookSettings
from webhook.serving_certificate import live as files
from webhook.serving_certificate.live import CertificateFilesError, CertificateFolder, LiveCertificate

NOW = dt.datetime.now(dt.UTC)


def version(directory: Path) -> Path:
    """The files of one version of a mounted Secret."""
    files.ensure(directory, material.LOCAL_HOSTS, now=NOW)
    return directory


@pytest.fixture
def mount(tmp_path: Path) -> Path:
    """A Secret as the kubelet mounts it: files are links into `..data`, which is a link that is swapped."""
    folder = tmp_path / "mount"
    version(folder / "..v1")
    (folder / "..data").symlink_to("..v1")
    for name in ("ca.crt", "tls.crt", "tls.key"):
        (folder / name).symlink_to(f"..data/{name}")
    return folder


def swap(mount: Path) -> None:
    version(mount / "..v2")
    (mount / "..tmp").symlink_to("..v2")
    (mount / "..tmp").rename(mount / "..data")


def opened_folder(mount: Path) -> tuple[CertificateFolder, LiveCertificate]:
    live = LiveCertificate(server.bare_context("1.3"))
    return CertificateFolder(mount, live), live


async def looked(folder: CertificateFolder, looks: int = 1) -> None:
    """Check the folder so many times."""
    count = 0

    async def sleep(_: float) -> None:
        nonlocal count
        if count == looks:
            raise asyncio.CancelledError
        count += 1

    with pytest.raises(asyncio.CancelledError):
        await folder.watch(sleep)


async def test_a_swapped_mount_is_served_without_a_restart(mount: Path) -> None:
    folder, live = opened_folder(mount)
    calls: list[str] = []
    folder.on_change(lambda: calls.append("changed"))
    before, bundle = live.digest, folder.bundle
    await looked(folder)
    assert (live.digest, calls) == (before, [])
    swap(mount)
    await looked(folder)
    assert live.digest != before
    assert folder.bundle != bundle
    assert (folder.problem, calls) == ("", ["changed"])


async def test_an_incomplete_change_keeps_the_served_certificate(tmp_path: Path) -> None:
    directory, other = version(tmp_path / "tls"), version(tmp_path / "other")
    folder, live = opened_folder(directory)
    before = live.digest
    (directory / "tls.crt").write_bytes((other / "tls.crt").read_bytes())
    await looked(folder, 3)
    assert live.digest == before
    assert folder.problem == f"the certificate in {directory} is not served: tls.key does not belong to tls.crt"
    (directory / "tls.key").write_bytes((other / "tls.key").read_bytes())
    await looked(folder)
    assert (folder.problem, live.digest != before) == ("", True)


def write_certificates(directory: Path, hosts: Sequence[str], *, now: dt.datetime) -> bytes:
    """Writes files as others would, valid or not; returns the certificate."""
    ca = material.make_authority("theirs", now=now, lifetime=dt.timedelta(days=9))
    pair = material.issue_serving(ca, "theirs", hosts, now=now, lifetime=dt.timedelta(days=3))
    (directory / "ca.crt").write_bytes(ca.certificate_pem)
    (directory / "tls.key").write_bytes(pair.key_pem)
    (directory / "tls.crt").write_bytes(pair.certificate_pem)
    return pair.certificate_pem


@pytest.mark.parametrize(
    ("days", "hosts", "why"),
    [
        (-10, material.LOCAL_HOSTS, "it expired on "),
        (10, material.LOCAL_HOSTS, "it is not valid before "),
        (0, ["another.example"], "it is for another.example, and the one in service, which stays, is for 127.0.0.1, "),
    ],
    ids=["expired", "not-yet-valid", "for-another"],
)
async def test_a_pair_that_clients_refuse_does_not_replace_one_that_they_accept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, days: int, hosts: Sequence[str], why: str
) -> None:
    folder, live = opened_folder(version(tmp_path))
    before, bundle = live.digest, folder.bundle
    write_certificates(tmp_path, hosts, now=NOW + dt.timedelta(days=days))
    await looked(folder, looks=5)
    assert (live.digest, folder.bundle) == (before, bundle)
    assert folder.problem.startswith(f"the certificate in {tmp_path} is not served: {why}")
    assert caplog.text.count("is not served") == 1
    assert live.reloads["failure"] == 1
    write_certificates(tmp_path, material.LOCAL_HOSTS, now=NOW)
    await looked(folder)
    assert (folder.problem, live.digest != before) == ("", True)


async def test_an_expired_certificate_may_be_replaced_by_any_other(tmp_path: Path) -> None:
    write_certificates(tmp_path, material.LOCAL_HOSTS, now=NOW - dt.timedelta(days=10))
    folder, live = opened_folder(tmp_path)
    before = live.digest
    write_certificates(tmp_path, ["another.example"], now=NOW)
    await looked(folder)
    assert live.digest != before
    assert not live.fault(NOW)


@pytest.mark.parametrize("name", ["tls.key", "tls.crt", "ca.crt"])
@pytest.mark.parametrize("kind", ["fifo", "device", "huge"])
async def test_a_special_file_does_not_block(tmp_path: Path, name: str, kind: str) -> None:
    folder, live = opened_folder(version(tmp_path))
    before, bundle = live.digest, folder.bundle
    path = tmp_path / name
    path.unlink()
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        with path.open("wb") as file:
            file.truncate(1 << 40)
    await looked(folder, looks=2)
    assert (live.digest, folder.bundle) == (before, bundle)
    said = "it is larger than 1048576 bytes" if kind == "huge" else "it is not a regular file"
    assert folder.problem == ("" if name == "ca.crt" else f"{path} cannot be read: {said}")
    if name != "ca.crt":
        with pytest.raises(CertificateFilesError, match=said):
            opened_folder(tmp_path)


async def test_a_deleted_file_is_reported_and_the_certificate_stays(mount: Path) -> None:
    folder, live = opened_folder(mount)
    (mount / "..v1" / "tls.key").unlink()
    await looked(folder)
    assert folder.problem == f"{mount}/tls.key cannot be read: No such file or directory"
    assert live.fault(NOW) == ""


async def test_a_deleted_ca_file_keeps_the_bundle(mount: Path) -> None:
    folder, _ = opened_folder(mount)
    bundle = folder.bundle
    (mount / "..v1" / "ca.crt").unlink()
    await looked(folder)
    assert folder.bundle == await folder.fresh_bundle() == bundle


async def test_the_ca_of_a_certificate_that_is_not_served_is_not_injected(tmp_path: Path) -> None:
    directory, other = version(tmp_path / "tls"), version(tmp_path / "other")
    folder, live = opened_folder(directory)
    bundle = folder.bundle
    for name in ("ca.crt", "tls.crt"):
        (directory / name).write_bytes((other / name).read_bytes())
    assert await folder.fresh_bundle() == bundle
    await looked(folder)
    assert folder.bundle == bundle
    (directory / "tls.key").write_bytes((other / "tls.key").read_bytes())
    await looked(folder)
    assert folder.bundle == await folder.fresh_bundle() == (other / "ca.crt").read_bytes()
    assert live.accepted_by(folder.bundle)


def test_files_that_cannot_be_served_are_refused_at_start(tmp_path: Path) -> None:
    with pytest.raises(CertificateFilesError, match=r"has no tls\.crt and no tls\.key"):
        opened_folder(tmp_path)


async def started(api: FakeApi, mount: Path, **settings: Any) -> tuple[Certificates, Any]:
    from kubernetes.aio.client.configuration import Configuration

    async def load() -> Configuration:
        return Configuration(host=api.url)

    certificates = Certificates(LiveCertificate(server.bare_context("1.3")))
    certificates.folder = CertificateFolder(mount, certificates.live)
    return certificates, await Connection.open(load)


@pytest.mark.parametrize("inject", [True, None])
async def test_the_ca_file_is_injected_with_inject_ca(mount: Path, inject: bool | None) -> None:
    async with FakeApi().serve() as api:
        api.put(MUTATING, configuration())
        certificates, connection = await started(api, mount)
        settings = WebhookSettings(tls_dir=mount, namespace="neuron-dra", inject_ca=inject)
        async with keeping(settings, certificates, connection):
            if inject:
                await eventually(lambda: bundles(api) == {(mount / "ca.crt").read_bytes()})
                await eventually(lambda: certificates.check()[0])
            else:
                await eventually(lambda: bool(api.calls("patch", "leases")))
                assert certificates.check()[0]
                assert bundles(api) == {b""}
        await connection.close()


async def test_no_bundle_is_injected_without_a_ca_file(mount: Path) -> None:
    (mount / "..v1" / "ca.crt").unlink()
    async with FakeApi().serve() as api:
        certificates, connection = await started(api, mount)
        settings = WebhookSettings(tls_dir=mount, namespace="neuron-dra", inject_ca=True)
        with pytest.raises(StartupError, match=r"--inject-ca needs a CA to inject, and .* has no usable ca\.crt"):
            async with keeping(settings, certificates, connection):
                pytest.fail("started")
        await connection.close()
