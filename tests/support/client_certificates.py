"""Client certificates for tests, as an admin would make them for the API server."""

import dataclasses
import datetime as dt
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

HOUR = dt.timedelta(hours=1)


@dataclasses.dataclass(frozen=True)
class Authority:
    """A CA that makes client certificates in a directory.

    Its file is written once: a server that follows the file closes its connections after each write.
    """

    directory: Path
    name: str
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def file(self) -> Path:
        return self.directory / f"{self.name}.crt"

    def client(
        self, common_name: str, *, dns: str = "", age: dt.timedelta = HOUR, left: dt.timedelta = HOUR
    ) -> tuple[Path, Path]:
        """Files of a certificate and its key; it began `age` ago and ends in `left`."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(common_name, self.certificate.subject, key, age, left).add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        if dns:
            builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(dns)]), critical=False)
        certificate = builder.sign(self.key, hashes.SHA256())
        paths = self.directory / f"{common_name}.{self.name}.crt", self.directory / f"{common_name}.{self.name}.key"
        paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        paths[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return paths


def authority(directory: Path, name: str) -> Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    certificate = (
        _builder(name, subject, key, HOUR, 24 * HOUR)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    made = Authority(directory, name, key, certificate)
    made.file.write_bytes(made.pem)
    return made


def _builder(
    common_name: str, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, age: dt.timedelta, left: dt.timedelta
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)]))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - age)
        .not_valid_after(now + left)
    )
