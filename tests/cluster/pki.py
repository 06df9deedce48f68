"""A throw-away certificate authority: files for the control plane, its clients and the webhook."""

import dataclasses
import datetime as dt
import ipaddress
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFETIME: Final = dt.timedelta(days=200)
_SKEW: Final = dt.timedelta(days=200)
"""Certificates are valid also for a process whose clock is months ahead or behind."""


@dataclasses.dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its private key, as PEM files."""

    certificate: Path
    key: Path


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> None:
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.touch(mode=0o600)
    path.write_bytes(pem)


def _name(common_name: str, organizations: Iterable[str] = ()) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, entry) for entry in organizations]
    return x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


class Authority:
    """A CA whose files lie in one directory; every certificate it signs lands there too."""

    def __init__(self, directory: Path, common_name: str = "cluster-test") -> None:
        self._directory = directory
        self._now = dt.datetime.now(dt.UTC)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = _name(common_name)
        self.files = KeyPair(directory / "ca.crt", directory / "ca.key")
        builder = self._builder(self._subject, self._key.public_key())
        certificate = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), True).sign(
            self._key, hashes.SHA256()
        )
        self.files.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        _write_key(self.files.key, self._key)

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._subject)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._now - _SKEW)
            .not_valid_after(self._now + _LIFETIME)
        )

    def issue(
        self, name: str, common_name: str, *, organizations: Iterable[str] = (), hosts: Iterable[str] = ()
    ) -> KeyPair:
        """Sign a client certificate; with `hosts` (names, addresses) it serves there too."""
        key = ec.generate_private_key(ec.SECP256R1())
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = self._builder(_name(common_name, organizations), key.public_key())
        alternatives = [_alternative(host) for host in hosts]
        if alternatives:
            usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
            builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), False)
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), False)
        files = KeyPair(self._directory / f"{name}.crt", self._directory / f"{name}.key")
        certificate = builder.sign(self._key, hashes.SHA256())
        files.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        _write_key(files.key, key)
        return files


def service_account_keys(directory: Path) -> tuple[Path, Path]:
    """The RSA key pair that signs ServiceAccount tokens: (private, public)."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private, public = directory / "sa.key", directory / "sa.pub"
    _write_key(private, key)
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return private, public
