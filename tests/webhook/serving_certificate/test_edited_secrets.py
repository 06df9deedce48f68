"""People and tools edit the Secret while it is in use: the served certificate stays trusted."""

import base64
import datetime as dt
import time

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from certs import material, rotation
from tests.support.fake_api import FakeApi, eventually
from tests.webhook.server.test_certificates import (
    MUTATING,
    SETTINGS,
    bundles,
    configuration,
    data,
    kept,
    made,
    pod,
    put_secret,
)
from webhook.server.certificates import Certificates, rules

__all__ = ["pod"]

Data = dict[str, bytes]


def made_with_rsa() -> Data:
    """One RSA certificate that is both CA and serving certificate."""
    now = dt.datetime.now(dt.UTC)
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "rsa")])
    names = [material.general_name(host) for host in rules(SETTINGS).hosts]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(minutes=5))
        .not_valid_after(now + dt.timedelta(days=365))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return {"ca.crt": pem, "tls.crt": pem, "tls.key": private}


def with_unknown_key(pem: bytes) -> bytes:
    """The same certificate with an unknown kind (OID) of public key."""
    der = x509.load_pem_x509_certificate(pem).public_bytes(serialization.Encoding.DER)
    changed = der.replace(bytes.fromhex("06072a8648ce3d0201"), bytes.fromhex("06072a8648ce3d027f"))
    assert changed != der
    return b"-----BEGIN CERTIFICATE-----\n" + base64.encodebytes(changed) + b"-----END CERTIFICATE-----\n"


def edited(good: Data, what: str) -> Data:
    other = made()
    changes = {
        "foreign CA": {"ca.crt": other["ca.crt"]},
        "foreign CA with its key": {"ca.crt": other["ca.crt"], "ca.key": other["ca.key"]},
        "foreign CA and a broken key": {"ca.crt": other["ca.crt"], "tls.key": b"x"},
        "keys swapped": {"ca.key": good["tls.key"], "tls.key": good["ca.key"]},
        "keys lost": {"ca.key": b"", "tls.key": b""},
        "RSA": {"ca.key": b"", **made_with_rsa()},
        "CA with an unknown kind of key": {"ca.crt": with_unknown_key(good["ca.crt"])},
        "expired CA": made(dt.datetime.now(dt.UTC) - dt.timedelta(days=3651)),
    }
    return {**good, **changes[what]}


def given_out(api: FakeApi) -> set[bytes]:
    """Every caBundle that an API server has ever seen."""
    return {
        base64.b64decode(webhook["clientConfig"].get("caBundle", ""))
        for _, plural, _, item in api._history
        if plural == MUTATING
        for webhook in item["webhooks"]
    } - {b""}


async def settled(api: FakeApi, certificates: Certificates) -> None:
    """The webhook has loaded the content of the Secret and reports no problem."""
    await eventually(lambda: certificates.follower and certificates.follower.known == data(api))
    await eventually(lambda: not certificates.problems())


@pytest.mark.parametrize(
    "what",
    [
        "foreign CA",
        "foreign CA with its key",
        "foreign CA and a broken key",
        "keys swapped",
        "keys lost",
        "RSA",
        "CA with an unknown kind of key",
        "expired CA",
    ],
)
async def test_an_edit_that_api_servers_would_refuse_is_undone_and_never_served(api: FakeApi, what: str) -> None:
    api.put(MUTATING, configuration())
    async with kept(api) as certificates:
        await eventually(lambda: bundles(api) == {data(api)["ca.crt"]})
        await settled(api, certificates)
        good, digest = data(api), certificates.live.digest
        put_secret(api, edited(good, what))
        await eventually(lambda: data(api) == good)
        await settled(api, certificates)
        assert certificates.live.digest == digest
        assert given_out(api) == {good["ca.crt"]}


@pytest.mark.parametrize("what", ["serving certificate", "its key"])
async def test_a_broken_serving_certificate_is_reissued_by_the_same_ca(api: FakeApi, what: str) -> None:
    api.put(MUTATING, configuration())
    async with kept(api) as certificates:
        await eventually(lambda: bundles(api) == {data(api)["ca.crt"]})
        good, digest = data(api), certificates.live.digest
        broken = {"tls.crt": with_unknown_key(good["tls.crt"])} if what == "serving certificate" else {"tls.key": b"x"}
        put_secret(api, {**good, **broken})
        await eventually(lambda: certificates.live.digest != digest)
        await settled(api, certificates)
        assert given_out(api) == {good["ca.crt"]} == {data(api)["ca.crt"]}


async def test_an_added_foreign_ca_breaks_nothing(api: FakeApi) -> None:
    put_secret(api, content := made())
    async with kept(api) as certificates:
        put_secret(api, {**content, "ca.crt": content["ca.crt"] + with_unknown_key(made()["ca.crt"])})
        await eventually(lambda: certificates.follower and certificates.follower.bundle != content["ca.crt"])
        assert len(material.read(data(api)).bundle) == 2
        assert certificates.problems() == []


def hosts_in_secret(api: FakeApi) -> set[str]:
    leaf = material.read(data(api)).leaf
    return set(material.hosts(leaf.certificate)) if leaf else set()


async def test_replicas_with_different_hosts_agree_on_one_certificate(api: FakeApi) -> None:
    hosts = ("10.0.0.1", "10.0.0.2")
    one, two = (msgspec.structs.replace(SETTINGS, host=host) for host in hosts)
    async with kept(api, one) as first, kept(api, two) as second:
        await eventually(lambda: set(hosts) <= hosts_in_secret(api))
        await eventually(lambda: first.live.digest == second.live.digest)
        assert (
            rotation.advance(data(api), now=first.now(), rules=rules(one), confirmed=rotation.Confirmed()).data is None
        )
        assert (
            rotation.advance(data(api), now=first.now(), rules=rules(two), confirmed=rotation.Confirmed()).data is None
        )
        assert len(api.calls("patch", "secrets")) == 2, "the first content, and the other host"


async def test_a_secret_that_is_emptied_repeatedly_is_written_at_a_limited_rate(api: FakeApi) -> None:
    async with kept(api):
        begun = time.monotonic()
        for _ in range(3):
            put_secret(api, {})
            await eventually(lambda: "ca.key" in data(api))
        assert time.monotonic() - begun > 1.9
