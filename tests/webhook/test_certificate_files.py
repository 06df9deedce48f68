"""A certificate that somebody else keeps in files, followed without a restart."""

import asyncio
import datetime as dt
from pathlib import Path
from typing import Any

import pytest

from certs import files, issue
from certs.files import CertificateFilesError
from tests.support.fake_api import FakeApi, eventually
from tests.webhook.test_certificates import MUTATING, bundles, configuration
from webhook.certificate_files import CertificateFolder
from webhook.certificates import Certificates, keeping
from webhook.cluster.kube import Connection
from webhook.edge import server
from webhook.edge.live_certificate import LiveCertificate
from webhook.settings import Settings, StartupError

pytestmark = pytest.mark.anyio

NOW = dt.datetime.now(dt.UTC)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def version(directory: Path) -> Path:
    """The files of one version of a mounted Secret."""
    files.ensure(directory, issue.LOCAL_HOSTS, now=NOW)
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


def opened(mount: Path) -> tuple[CertificateFolder, LiveCertificate]:
    live = LiveCertificate(server.bare_context("1.3"))
    return CertificateFolder(mount, live), live


async def looked(folder: CertificateFolder, looks: int = 1) -> None:
    """Have the folder looked at so many times."""
    count = 0

    async def sleep(_: float) -> None:
        nonlocal count
        if count == looks:
            raise asyncio.CancelledError
        count += 1

    with pytest.raises(asyncio.CancelledError):
        await folder.watch(sleep)


async def test_a_swapped_mount_is_served_without_a_restart(mount: Path) -> None:
    folder, live = opened(mount)
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


async def test_half_a_change_leaves_the_old_one_in_service_until_it_is_whole(tmp_path: Path) -> None:
    directory, other = version(tmp_path / "tls"), version(tmp_path / "other")
    folder, live = opened(directory)
    before = live.digest
    (directory / "tls.crt").write_bytes((other / "tls.crt").read_bytes())
    await looked(folder, 3)
    assert live.digest == before
    assert folder.problem == f"the certificate in {directory} is not served: tls.key does not belong to tls.crt"
    (directory / "tls.key").write_bytes((other / "tls.key").read_bytes())
    await looked(folder)
    assert (folder.problem, live.digest != before) == ("", True)


async def test_a_file_that_goes_is_said_and_what_was_loaded_is_served_on(mount: Path) -> None:
    folder, live = opened(mount)
    (mount / "..v1" / "tls.key").unlink()
    await looked(folder)
    assert folder.problem == f"{mount}/tls.key cannot be read: No such file or directory"
    assert live.fault(NOW) == ""


async def test_a_ca_file_that_goes_leaves_the_known_bundle(mount: Path) -> None:
    folder, _ = opened(mount)
    bundle = folder.bundle
    (mount / "..v1" / "ca.crt").unlink()
    await looked(folder)
    assert folder.bundle == await folder.fresh_bundle() == bundle


async def test_the_ca_of_a_certificate_that_is_not_served_yet_is_not_given_out(tmp_path: Path) -> None:
    directory, other = version(tmp_path / "tls"), version(tmp_path / "other")
    folder, live = opened(directory)
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
        opened(tmp_path)


async def started(api: FakeApi, mount: Path, **settings: Any) -> tuple[Certificates, Any]:
    from kubernetes.aio.client.configuration import Configuration

    async def load() -> Configuration:
        return Configuration(host=api.url)

    certificates = Certificates(LiveCertificate(server.bare_context("1.3")))
    certificates.folder = CertificateFolder(mount, certificates.live)
    return certificates, await Connection.open(load)


@pytest.mark.parametrize("inject", [True, None])
async def test_the_ca_file_is_injected_where_that_is_asked_for(mount: Path, inject: bool | None) -> None:
    async with FakeApi().serve() as api:
        api.put(MUTATING, configuration())
        certificates, connection = await started(api, mount)
        settings = Settings(tls_dir=mount, namespace="neuron-dra", inject_ca=inject)
        async with keeping(settings, certificates, connection):
            if inject:
                await eventually(lambda: bundles(api) == {(mount / "ca.crt").read_bytes()})
                await eventually(lambda: certificates.check()[0])
            else:
                await eventually(lambda: bool(api.calls("patch", "leases")))
                assert certificates.check()[0]
                assert bundles(api) == {b""}
        await connection.close()


async def test_without_a_ca_file_there_is_nothing_to_inject(mount: Path) -> None:
    (mount / "..v1" / "ca.crt").unlink()
    async with FakeApi().serve() as api:
        certificates, connection = await started(api, mount)
        settings = Settings(tls_dir=mount, namespace="neuron-dra", inject_ca=True)
        with pytest.raises(StartupError, match=r"--inject-ca needs a CA to inject, and .* has no usable ca\.crt"):
            async with keeping(settings, certificates, connection):
                pytest.fail("started")
        await connection.close()
