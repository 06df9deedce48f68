"""Certificates as TLS libraries and clients judge them."""

import datetime as dt
import ipaddress

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from certs import material

NOW = dt.datetime(2026, 5, 1, 12, tzinfo=dt.UTC)
YEAR = dt.timedelta(days=365)


@pytest.fixture(scope="module")
def authority() -> material.Authority:
    return material.make_authority("test CA", now=NOW, lifetime=YEAR)


@pytest.fixture(scope="module")
def pair(authority: material.Authority) -> material.KeyPair:
    hosts = ("localhost", "127.0.0.1", "::1", "webhook.neuron-dra.svc", "localhost")
    return material.issue_serving(authority, "webhook", hosts, now=NOW, lifetime=YEAR)


@pytest.fixture(scope="module")
def leaf(pair: material.KeyPair) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pair.certificate_pem)


def verify(authority: material.Authority, leaf: x509.Certificate, subject: x509.GeneralName, at: dt.datetime) -> None:
    assert isinstance(subject, x509.DNSName | x509.IPAddress)
    policy = PolicyBuilder().store(Store([authority.certificate])).time(at)
    policy.build_server_verifier(subject).verify(leaf, [])


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1", "webhook.neuron-dra.svc"])
def test_clients_that_trust_the_ca_accept_every_host(
    authority: material.Authority, leaf: x509.Certificate, host: str
) -> None:
    verify(authority, leaf, material.general_name(host), NOW)


@pytest.mark.parametrize(
    ("host", "at"),
    [
        pytest.param("example.com", NOW, id="other-host"),
        pytest.param("localhost", NOW - material.BACKDATE - dt.timedelta(seconds=1), id="before"),
        pytest.param("localhost", NOW + YEAR + dt.timedelta(seconds=1), id="after"),
    ],
)
def test_clients_refuse_other_hosts_and_times(
    authority: material.Authority, leaf: x509.Certificate, host: str, at: dt.datetime
) -> None:
    with pytest.raises(VerificationError):
        verify(authority, leaf, material.general_name(host), at)


def test_clients_that_trust_another_ca_refuse(leaf: x509.Certificate) -> None:
    other = material.make_authority("test CA", now=NOW, lifetime=YEAR)
    with pytest.raises(VerificationError):
        verify(other, leaf, material.general_name("localhost"), NOW)


def test_the_extensions_are_those_of_rfc_5280() -> None:
    authority = material.make_authority("test CA", now=NOW, lifetime=YEAR)
    pair = material.issue_serving(authority, "webhook", ["localhost"], now=NOW, lifetime=YEAR)
    leaf = x509.load_pem_x509_certificate(pair.certificate_pem)

    def usage(*names: str) -> x509.KeyUsage:
        every = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
        others = ("key_cert_sign", "crl_sign", "encipher_only", "decipher_only")
        return x509.KeyUsage(**{name: name in names for name in (*every, *others)})

    def critical(certificate: x509.Certificate) -> dict[x509.ExtensionType, bool]:
        kinds = (x509.BasicConstraints, x509.KeyUsage, x509.ExtendedKeyUsage)
        return {each.value: each.critical for each in certificate.extensions if isinstance(each.value, kinds)}

    assert critical(authority.certificate) == {
        x509.BasicConstraints(ca=True, path_length=0): True,
        usage("key_cert_sign", "crl_sign"): True,
    }
    assert critical(leaf) == {
        x509.BasicConstraints(ca=False, path_length=None): True,
        usage("digital_signature"): True,
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]): False,
    }


def test_keys_are_p256_and_belong_to_their_certificate(pair: material.KeyPair, leaf: x509.Certificate) -> None:
    key = serialization.load_pem_private_key(pair.key_pem, password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert key.curve.name == "secp256r1"
    assert key.public_key() == leaf.public_key()
    assert pair.key_pem.startswith(b"-----BEGIN PRIVATE KEY-----")


def test_hosts_are_subject_alternative_names_once_each(leaf: x509.Certificate) -> None:
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost", "webhook.neuron-dra.svc"]
    addresses = [ipaddress.ip_address("127.0.0.1"), ipaddress.ip_address("::1")]
    assert names.get_values_for_type(x509.IPAddress) == addresses
    assert leaf.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value == "webhook"


def test_the_serving_certificate_is_for_server_authentication_only(leaf: x509.Certificate) -> None:
    usage = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.SERVER_AUTH]
    assert leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False
    assert leaf.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign is False


def test_the_ca_signs_certificates_but_makes_no_further_ca(authority: material.Authority) -> None:
    extensions = authority.certificate.extensions
    constraints = extensions.get_extension_for_class(x509.BasicConstraints)
    assert (constraints.critical, constraints.value.ca, constraints.value.path_length) == (True, True, 0)
    assert extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign is True
    assert authority.certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value == "test CA"


def test_a_serving_certificate_does_not_outlive_its_ca(authority: material.Authority) -> None:
    pair = material.issue_serving(authority, "late", ["localhost"], now=NOW + YEAR / 2, lifetime=YEAR)
    leaf = x509.load_pem_x509_certificate(pair.certificate_pem)
    assert leaf.not_valid_after_utc == authority.certificate.not_valid_after_utc


def test_no_two_certificates_share_a_serial_number_or_key(
    authority: material.Authority, leaf: x509.Certificate
) -> None:
    again = material.issue_serving(authority, "webhook", ["localhost"], now=NOW, lifetime=YEAR)
    other = x509.load_pem_x509_certificate(again.certificate_pem)
    assert other.serial_number != leaf.serial_number
    assert other.public_key() != leaf.public_key()


@pytest.mark.parametrize("host", ["", "two words", "müller.example", "new\nline"])
def test_an_invalid_host_is_refused(authority: material.Authority, host: str) -> None:
    with pytest.raises(ValueError, match="is neither an IP address nor a DNS name"):
        material.issue_serving(authority, "x", [host], now=NOW, lifetime=YEAR)


def test_a_certificate_needs_a_host(authority: material.Authority) -> None:
    with pytest.raises(ValueError, match="needs at least one host"):
        material.issue_serving(authority, "x", [], now=NOW, lifetime=YEAR)


def test_times_need_a_zone() -> None:
    with pytest.raises(ValueError, match="2026-05-01T12:00:00 has no time zone"):
        material.make_authority("x", now=NOW.replace(tzinfo=None), lifetime=YEAR)
