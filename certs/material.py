"""Reads and encodes the Secret of certificates: CA bundle, CA key, serving certificate and key, next CA.

`ca.crt` is the bundle that clients trust, with the current CA first. Keys have the names of `kubernetes.io/tls` and
cert-manager where those exist, so that such a Secret can be read and taken over.
"""

import dataclasses
import datetime as dt
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

from certs import issue

CA: Final = "ca.crt"
CA_KEY: Final = "ca.key"
CERTIFICATE: Final = "tls.crt"
KEY: Final = "tls.key"
NEXT_CA: Final = "next-ca.crt"
NEXT_CA_KEY: Final = "next-ca.key"
KEYS: Final = (CA, CA_KEY, CERTIFICATE, KEY, NEXT_CA, NEXT_CA_KEY)


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

    pair: issue.KeyPair = dataclasses.field(repr=False)
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
    next: issue.Authority | None

    @property
    def current(self) -> x509.Certificate:
        """The CA that signs new leaves."""
        return self.bundle[0]

    @property
    def authority(self) -> issue.Authority | None:
        """The current CA with its key; None without a key."""
        return issue.Authority(self.current, self.key) if self.key is not None else None

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


def read_pair(pair: issue.KeyPair) -> tuple[x509.Certificate, ...]:
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
    return [host for host in hosts if issue.general_name(host) not in covered]


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
    pair = issue.KeyPair(data.get(CERTIFICATE, b""), data.get(KEY, b""))
    try:
        chain = read_pair(pair)
    except UnusableError as why:
        return None, str(why)
    return ServingCertificate(pair, chain[0], anchor(chain, cas)), ""


def _next(data: Mapping[str, bytes]) -> issue.Authority | None:
    """The next CA; None unless its certificate and key are both present and match."""
    key = _ec_key(data.get(NEXT_CA_KEY))
    try:
        certificate = certificates(data.get(NEXT_CA, b""), NEXT_CA)[0]
    except UnusableError:
        return None
    if key is None or not _belongs(key, certificate):
        return None
    return issue.Authority(certificate, key)


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
