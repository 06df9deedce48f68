"""Issues a CA and serving certificates: ECDSA P-256, in memory, at a time that the caller passes.

Certificates have the extensions that RFC 5280 and OpenSSL's strict mode require, and no others. Clients match hosts
with subjectAltName only (RFC 6125), so the subject contains no host.
"""

import dataclasses
import datetime as dt
import ipaddress
from collections.abc import Iterable
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

BACKDATE: Final = dt.timedelta(minutes=5)
"""A certificate is valid from this long before its creation, because clocks may differ."""

LOCAL_HOSTS: Final = ("localhost", "127.0.0.1", "::1")


@dataclasses.dataclass(frozen=True, slots=True)
class Authority:
    """A CA that can sign.

    Attributes:
        certificate: its self-signed certificate.
    """

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def certificate_pem(self) -> bytes:
        """PEM of the certificate that clients must trust."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)


@dataclasses.dataclass(frozen=True, slots=True)
class KeyPair:
    """Certificate and key, as a TLS server loads them.

    Attributes:
        certificate_pem: the serving certificate, PEM.
        key_pem: its private key, PKCS #8 PEM, not encrypted.
    """

    certificate_pem: bytes
    key_pem: bytes


def make_authority(common_name: str, *, now: dt.datetime, lifetime: dt.timedelta) -> Authority:
    """A new CA, which may sign server certificates but no other CA.

    Args:
        common_name: the name of the issuer; at most 64 characters (RFC 5280).
        now: a time with time zone.
        lifetime: validity from `now` on.

    Raises:
        ValueError: the name is empty or too long, or `now` has no time zone.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(common_name)
    certificate = (
        _builder(name, name, key.public_key(), now, lifetime)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return Authority(certificate, key)


def issue_serving(
    authority: Authority,
    common_name: str,
    hosts: Iterable[str],
    *,
    now: dt.datetime,
    lifetime: dt.timedelta,
) -> KeyPair:
    """A serving certificate for `hosts`, with a new key.

    Args:
        common_name: for people; at most 64 characters.
        hosts: DNS names and IP addresses that clients connect to.
        now: a time with time zone.
        lifetime: validity from `now` on; at most until the end of the CA.

    Raises:
        ValueError: there is no host, or one is neither an IP address nor a DNS name.
    """
    names = [general_name(host) for host in dict.fromkeys(hosts)]
    if not names:
        raise ValueError("A serving certificate needs at least one host.")
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = authority.certificate
    lifetime = min(lifetime, issuer.not_valid_after_utc - now)
    identifier = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    certificate = (
        _builder(_name(common_name), issuer.subject, key.public_key(), now, lifetime)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        .sign(authority.key, hashes.SHA256())
    )
    return KeyPair(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )


def general_name(host: str) -> x509.GeneralName:
    """A host as an entry of subjectAltName: an IP address or a DNS name.

    Raises:
        ValueError: the host is empty or not ASCII.
    """
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not host or not host.isascii() or any(letter.isspace() for letter in host):
        raise ValueError(f"'{host}' is neither an IP address nor a DNS name.")
    return x509.DNSName(host)


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    now: dt.datetime,
    lifetime: dt.timedelta,
) -> x509.CertificateBuilder:
    if now.tzinfo is None:
        raise ValueError(f"The time {now.isoformat()} has no time zone.")
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATE)
        .not_valid_after(now + lifetime)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
