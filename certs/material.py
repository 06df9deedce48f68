"""What a Secret of certificates holds: a CA bundle, the key to sign with, the certificate in service, a CA to come.

`ca.crt` is the bundle that clients trust, the current CA first. The keys are those of `kubernetes.io/tls` and
cert-manager where these have one, so that a Secret of theirs can be read and taken over.
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
    """Nothing can be served from this; the message says what is wrong with which key of the Secret."""


@dataclasses.dataclass(frozen=True, slots=True)
class Leaf:
    """A serving certificate with its key.

    Attributes:
        pair: as a TLS server loads it; the certificate may be followed by intermediates.
        certificate: the serving certificate itself.
        anchor: the CA of the bundle that vouches for it; None where none does.
    """

    pair: issue.KeyPair = dataclasses.field(repr=False)
    certificate: x509.Certificate
    anchor: x509.Certificate | None


@dataclasses.dataclass(frozen=True, slots=True)
class Material:
    """The content of a Secret, read.

    Attributes:
        bundle: the CAs that clients trust, each once, the current one first.
        key: signs for the current CA; None where it is missing or of another kind than we make.
        leaf: what is in service; None where it cannot be used.
        leaf_fault: why not.
        next: the CA that waits to be taken.
    """

    bundle: tuple[x509.Certificate, ...]
    key: ec.EllipticCurvePrivateKey | None = dataclasses.field(repr=False)
    leaf: Leaf | None
    leaf_fault: str
    next: issue.Authority | None

    @property
    def current(self) -> x509.Certificate:
        """The CA that signs."""
        return self.bundle[0]

    @property
    def authority(self) -> issue.Authority | None:
        """The current CA with its key, where the key is there."""
        return issue.Authority(self.current, self.key) if self.key is not None else None

    @property
    def bundle_pem(self) -> bytes:
        """The bundle as `caBundle` carries it before base64."""
        return bundle_pem(self.bundle)

    def encode(self) -> dict[str, bytes]:
        """The content again, as a Secret's data before base64."""
        data = {CA: self.bundle_pem}
        if self.key is not None:
            data[CA_KEY] = key_pem(self.key)
        if self.leaf is not None:
            data |= {CERTIFICATE: self.leaf.pair.certificate_pem, KEY: self.leaf.pair.key_pem}
        if self.next is not None:
            data |= {NEXT_CA: self.next.certificate_pem, NEXT_CA_KEY: key_pem(self.next.key)}
        return data


def read(data: Mapping[str, bytes]) -> Material:
    """Read a Secret's data, decoded from base64.

    Raises:
        UnusableError: there is no CA to build on.
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
        UnusableError: there is none, or one cannot be read.
    """
    if not pem.strip():
        raise UnusableError(f"there is no {name}")
    try:
        return tuple(dict.fromkeys(x509.load_pem_x509_certificates(pem)))
    except ValueError as error:
        raise UnusableError(f"{name} holds no PEM certificates") from error


def bundle_pem(cas: Iterable[x509.Certificate]) -> bytes:
    """CAs as a PEM bundle."""
    return b"".join(ca.public_bytes(serialization.Encoding.PEM) for ca in cas)


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A key as PKCS #8 PEM, not encrypted."""
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
        UnusableError: one part cannot be read, or they do not belong together.
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
    """The CA that vouches for the first certificate of a chain, directly or through the others; None: none does."""
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
    """Why a certificate is not valid at that time; empty where it is."""
    if certificate.not_valid_after_utc <= now:
        return f"expired on {certificate.not_valid_after_utc.isoformat()}"
    if certificate.not_valid_before_utc > now:
        return f"is not valid before {certificate.not_valid_before_utc.isoformat()}"
    return ""


def uncovered(certificate: x509.Certificate, hosts: Iterable[str]) -> list[str]:
    """Hosts that a serving certificate does not name."""
    covered = _names(certificate)
    return [host for host in hosts if issue.general_name(host) not in covered]


def hosts(certificate: x509.Certificate) -> list[str]:
    """DNS names and IP addresses that a serving certificate names."""
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


def _leaf(data: Mapping[str, bytes], cas: Sequence[x509.Certificate]) -> tuple[Leaf | None, str]:
    pair = issue.KeyPair(data.get(CERTIFICATE, b""), data.get(KEY, b""))
    try:
        chain = read_pair(pair)
    except UnusableError as why:
        return None, str(why)
    return Leaf(pair, chain[0], anchor(chain, cas)), ""


def _next(data: Mapping[str, bytes]) -> issue.Authority | None:
    """The CA to come, if both of its parts are there and belong together; half of one is as good as none."""
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
    except (ValueError, UnsupportedAlgorithm):  # a kind of key that the library does not know
        return False


def _ec_key(pem: bytes | None) -> ec.EllipticCurvePrivateKey | None:
    try:
        key = serialization.load_pem_private_key(pem or b"", password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return None
    return key if isinstance(key, ec.EllipticCurvePrivateKey) else None
