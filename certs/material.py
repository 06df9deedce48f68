"""Certificates: issues a CA and serving certificates, and reads and encodes their Secret.

They are ECDSA P-256, made in memory at a time that the caller passes. They have the extensions that RFC 5280 and
OpenSSL's strict mode require, and no others. Clients match hosts with subjectAltName only (RFC 6125), so the subject
contains no host.

The Secret has the CA bundle, the CA key, the serving certificate and key, and the next CA. `ca.crt` is the bundle that
clients trust, with the current CA first. Keys have the names of `kubernetes.io/tls` and cert-manager where those exist,
so that such a Secret can be read and taken over.
"""

import dataclasses
import datetime as dt
import hashlib
import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

BACKDATE: Final = dt.timedelta(minutes=5)
"""A certificate is valid from this long before its creation, because clocks may differ."""

LOCAL_HOSTS: Final = ("localhost", "127.0.0.1", "::1")


CA: Final = "ca.crt"
CA_KEY: Final = "ca.key"
CERTIFICATE: Final = "tls.crt"
KEY: Final = "tls.key"
NEXT_CA: Final = "next-ca.crt"
NEXT_CA_KEY: Final = "next-ca.key"
KEYS: Final = (CA, CA_KEY, CERTIFICATE, KEY, NEXT_CA, NEXT_CA_KEY)


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
    authority: Authority, common_name: str, hosts: Iterable[str], *, now: dt.datetime, lifetime: dt.timedelta
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
    return KeyPair(certificate.public_bytes(serialization.Encoding.PEM), key_pem(key))


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


class UnusableError(Exception):
    """The content cannot be used; the message names the key of the Secret and the fault."""


@dataclasses.dataclass(frozen=True, slots=True)
class ServingCertificate:
    """A serving certificate with its key.

    Attributes:
        pair: PEM of both; intermediate certificates may follow the certificate.
        certificate: the serving certificate itself.
        anchor: the CA of the bundle that verifies it; None if no CA does.
    """

    pair: KeyPair = dataclasses.field(repr=False)
    certificate: x509.Certificate
    anchor: x509.Certificate | None


@dataclasses.dataclass(frozen=True, slots=True)
class Material:
    """The content of a Secret.

    Attributes:
        bundle: the CAs that clients trust, each once, the current one first.
        key: key of the current CA; None if it is missing or not an EC key.
        leaf: the serving certificate; None if it cannot be used.
        leaf_fault: why the leaf cannot be used; empty if it can.
        next: the CA that waits until all replicas have its bundle; None: no rotation.
    """

    bundle: tuple[x509.Certificate, ...]
    key: ec.EllipticCurvePrivateKey | None = dataclasses.field(repr=False)
    leaf: ServingCertificate | None
    leaf_fault: str
    next: Authority | None

    @property
    def current(self) -> x509.Certificate:
        """The CA that signs new leaves."""
        return self.bundle[0]

    @property
    def authority(self) -> Authority | None:
        """The current CA with its key; None without a key."""
        return Authority(self.current, self.key) if self.key is not None else None

    @property
    def bundle_pem(self) -> bytes:
        """The bundle for `caBundle`, before base64."""
        return bundle_pem(self.bundle)

    def encode(self) -> dict[str, bytes]:
        """The content as `data` of a Secret, before base64."""
        data = {CA: self.bundle_pem}
        if self.key is not None:
            data[CA_KEY] = key_pem(self.key)
        if self.leaf is not None:
            data |= {CERTIFICATE: self.leaf.pair.certificate_pem, KEY: self.leaf.pair.key_pem}
        if self.next is not None:
            data |= {NEXT_CA: self.next.certificate_pem, NEXT_CA_KEY: key_pem(self.next.key)}
        return data


def read(data: Mapping[str, bytes]) -> Material:
    """Read `data` of a Secret, decoded from base64.

    Raises:
        UnusableError: there is no usable CA.
    """
    cas = certificates(data.get(CA, b""), CA)
    key = _ec_key(data.get(CA_KEY))
    if key is not None:
        signing = [ca for ca in cas if _belongs(key, ca)]
        if signing:
            cas = (signing[0], *(ca for ca in cas if ca != signing[0]))
        else:
            key = None
    leaf, fault = _leaf(data, cas)
    return Material(cas, key, leaf, fault, _next(data))


def certificates(pem: bytes, name: str) -> tuple[x509.Certificate, ...]:
    """The certificates of a bundle, each once, in their order.

    Raises:
        UnusableError: no certificate, or an unreadable one.
    """
    if not pem.strip():
        raise UnusableError(f"there is no {name}")
    try:
        return tuple(dict.fromkeys(x509.load_pem_x509_certificates(pem)))
    except ValueError as error:
        raise UnusableError(f"{name} holds no PEM certificates") from error


def bundle_pem(cas: Iterable[x509.Certificate]) -> bytes:
    return b"".join(ca.public_bytes(serialization.Encoding.PEM) for ca in cas)


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """PKCS #8 PEM of a key, not encrypted."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def bundle_digest(pem: bytes) -> str:
    """Hex SHA-256 of a bundle's PEM."""
    return hashlib.sha256(pem).hexdigest()


def certificate_digest(certificate: x509.Certificate) -> str:
    """Hex SHA-256 of a certificate's DER."""
    return hashlib.sha256(certificate.public_bytes(serialization.Encoding.DER)).hexdigest()


def read_pair(pair: KeyPair) -> tuple[x509.Certificate, ...]:
    """The chain of a pair, the serving certificate first.

    Raises:
        UnusableError: one part cannot be read, or key and certificate do not match.
    """
    chain = certificates(pair.certificate_pem, CERTIFICATE)
    if not pair.key_pem.strip():
        raise UnusableError(f"there is no {KEY}")
    try:
        key = serialization.load_pem_private_key(pair.key_pem, password=None)
    except TypeError as error:
        raise UnusableError(f"{KEY} is encrypted") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UnusableError(f"{KEY} is not a PEM private key") from error
    try:
        chain[0].public_key()
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UnusableError(f"{CERTIFICATE} has a key of a kind that is not known") from error
    if not _belongs(key, chain[0]):
        raise UnusableError(f"{KEY} does not belong to {CERTIFICATE}")
    return chain


def anchor(chain: Sequence[x509.Certificate], cas: Iterable[x509.Certificate]) -> x509.Certificate | None:
    """The CA that verifies the first certificate of a chain, directly or through the others; None: no CA does."""
    cas, others, link = tuple(cas), list(chain[1:]), chain[0]
    while True:
        for ca in cas:
            if _issued(link, ca):
                return ca
        above = next((other for other in others if _issued(link, other)), None)
        if above is None:
            return None
        others.remove(above)
        link = above


def fault(certificate: x509.Certificate, now: dt.datetime) -> str:
    """Why a certificate is not valid at that time; empty if it is."""
    if certificate.not_valid_after_utc <= now:
        return f"expired on {certificate.not_valid_after_utc.isoformat()}"
    if certificate.not_valid_before_utc > now:
        return f"is not valid before {certificate.not_valid_before_utc.isoformat()}"
    return ""


def uncovered(certificate: x509.Certificate, hosts: Iterable[str]) -> list[str]:
    """The hosts that a serving certificate does not contain."""
    covered = _names(certificate)
    return [host for host in hosts if general_name(host) not in covered]


def hosts(certificate: x509.Certificate) -> list[str]:
    """DNS names and IP addresses of a serving certificate."""
    return [str(name.value) for name in _names(certificate) if isinstance(name, x509.DNSName | x509.IPAddress)]


def _names(certificate: x509.Certificate) -> list[x509.GeneralName]:
    try:
        return list(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except (x509.ExtensionNotFound, ValueError):
        return []


def _issued(certificate: x509.Certificate, by: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(by)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def _leaf(data: Mapping[str, bytes], cas: Sequence[x509.Certificate]) -> tuple[ServingCertificate | None, str]:
    pair = KeyPair(data.get(CERTIFICATE, b""), data.get(KEY, b""))
    try:
        chain = read_pair(pair)
    except UnusableError as why:
        return None, str(why)
    return ServingCertificate(pair, chain[0], anchor(chain, cas)), ""


def _next(data: Mapping[str, bytes]) -> Authority | None:
    """The next CA; None unless its certificate and key are both present and match."""
    key = _ec_key(data.get(NEXT_CA_KEY))
    try:
        certificate = certificates(data.get(NEXT_CA, b""), NEXT_CA)[0]
    except UnusableError:
        return None
    if key is None or not _belongs(key, certificate):
        return None
    return Authority(certificate, key)


def _belongs(key: PrivateKeyTypes, certificate: x509.Certificate) -> bool:
    try:
        return certificate.public_key() == key.public_key()
    except (ValueError, UnsupportedAlgorithm):  # the library does not know this kind of key
        return False


def _ec_key(pem: bytes | None) -> ec.EllipticCurvePrivateKey | None:
    try:
        key = serialization.load_pem_private_key(pem or b"", password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return None
    return key if isinstance(key, ec.EllipticCurvePrivateKey) else None
