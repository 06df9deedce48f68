"""Signatures and provenance of a release, with a local key.

ECDSA on P-256 with SHA-256, so that openssl and cosign verify it. Statements are in-toto 1.0 with SLSA provenance 1.0,
in DSSE envelopes. `python -m deploy.signing FOLDER KEY` verifies a release. The workflow signs with `sigstore`.
"""

import argparse
import base64
import hashlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from deploy import oci

STATEMENT: Final = "https://in-toto.io/Statement/v1"
PROVENANCE: Final = "https://slsa.dev/provenance/v1"
BUILD_TYPE: Final = "urn:neuron-dra:make-release:v1"
SUMS: Final = "SHA256SUMS"
SUMS_SIGNATURE: Final = "SHA256SUMS.sig"
STATEMENT_FILE: Final = "provenance.json"
ENVELOPE_FILE: Final = "provenance.dsse.json"
PUBLIC_KEY: Final = "signing.pub"
IMAGES: Final = "oci"
SIGNATURES: Final = "signatures"
UNSUMMED: Final = frozenset({SUMS, SUMS_SIGNATURE, STATEMENT_FILE, ENVELOPE_FILE, PUBLIC_KEY, SIGNATURES})
"""Files and folders that are made from the checksums."""

_PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"
_MAKE: Final = "openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out signing.key"


class SigningError(Exception):
    """A key cannot be used, or something is not what was signed; the message says which."""


class Key:
    """A private key."""

    def __init__(self, file: Path, password: str | None = None) -> None:
        """Read a key in PEM.

        Raises:
            SigningError: it cannot be read, or is no key on P-256.
        """
        try:
            key = serialization.load_pem_private_key(file.read_bytes(), password.encode() if password else None)
        except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise SigningError(
                f"SIGNING_KEY is {file}, which cannot be read as a private key in PEM: {error}. If it is encrypted, "
                f"set SIGNING_KEY_PASSWORD. `{_MAKE}` makes a key."
            ) from error
        if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
            raise SigningError(f"SIGNING_KEY is {file}, which is no EC key on the curve P-256: `{_MAKE}` makes one.")
        self._key = key

    @property
    def public(self) -> bytes:
        """The public key, in PEM."""
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        return self._key.public_key().public_bytes(serialization.Encoding.PEM, form)

    def sign(self, content: bytes) -> bytes:
        """The signature of bytes, in DER."""
        return self._key.sign(content, ec.ECDSA(hashes.SHA256()))

    def envelope(self, statement: Mapping[str, Any]) -> dict[str, Any]:
        """A signed statement."""
        payload = json.dumps(statement, sort_keys=True).encode()
        signed = base64.b64encode(self.sign(_to_sign(payload))).decode()
        return {
            "payloadType": _PAYLOAD_TYPE,
            "payload": base64.b64encode(payload).decode(),
            "signatures": [{"keyid": "", "sig": signed}],
        }


def statement(subjects: Mapping[str, str], predicate: Mapping[str, Any]) -> dict[str, Any]:
    """An in-toto statement.

    Args:
        subjects: name -> SHA-256, in hexadecimal.
        predicate: SLSA provenance.
    """
    return {
        "_type": STATEMENT,
        "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in sorted(subjects.items())],
        "predicateType": PROVENANCE,
        "predicate": predicate,
    }


def files_of(folder: Path) -> dict[str, str]:
    """Name -> SHA-256 of all files of a release that have a checksum."""
    paths = {str(each.relative_to(folder)): each for each in folder.rglob("*") if each.is_file()}
    return {
        name: hashlib.sha256(path.read_bytes()).hexdigest()
        for name, path in sorted(paths.items())
        if name.partition("/")[0] not in UNSUMMED
    }


def manifests_of(folder: Path) -> dict[str, str]:
    """Repository and tag -> digest, for all layouts of a release."""
    found = {}
    for each in sorted((folder / IMAGES).rglob("oci-layout")):
        repository = each.parent.relative_to(folder / IMAGES)
        for tag, descriptor in oci.Layout(each.parent).tags.items():
            found[f"{repository}:{tag}"] = descriptor["digest"]
    return found


def sign_release(folder: Path, key: Key, predicate: Mapping[str, Any], registry: str) -> None:
    """Sign the checksums, the provenance, and each manifest as one of a registry."""
    (folder / PUBLIC_KEY).write_bytes(key.public)
    (folder / SUMS_SIGNATURE).write_bytes(base64.b64encode(key.sign((folder / SUMS).read_bytes())) + b"\n")
    envelope = key.envelope(json.loads((folder / STATEMENT_FILE).read_bytes()))
    (folder / ENVELOPE_FILE).write_text(json.dumps(envelope) + "\n")
    for name, digest in manifests_of(folder).items():
        repository = name.rpartition(":")[0]
        layout = oci.Layout(folder / SIGNATURES / repository)
        oci.add_signature(layout, digest, key.sign, f"{registry}/{repository}" if registry else "")
        about = key.envelope(statement({repository: digest.removeprefix("sha256:")}, predicate))
        oci.add_attestation(layout, digest, about, PROVENANCE)


def verify(public: bytes, content: bytes, signature: str, what: str) -> None:
    """Check a signature.

    Args:
        public: the key, in PEM.
        content: what was signed.
        signature: base64.
        what: name of the content, for the message.

    Raises:
        SigningError: the key did not sign this content.
    """
    try:
        key = serialization.load_pem_public_key(public)
    except ValueError as error:
        raise SigningError(f"the public key cannot be read: {error}: give one in PEM") from error
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise SigningError("the public key is no EC key: give the one of the release")
    try:
        key.verify(base64.b64decode(signature), content, ec.ECDSA(hashes.SHA256()))
    except (ValueError, InvalidSignature) as error:
        raise SigningError(f"{what}: the signature is not of this content and this key: do not use it") from error


def opened(public: bytes, envelope: Mapping[str, Any], what: str) -> dict[str, Any]:
    """The statement of an envelope whose signature is valid.

    Raises:
        SigningError: it is not.
    """
    payload = base64.b64decode(envelope["payload"])
    if envelope["payloadType"] != _PAYLOAD_TYPE:
        raise SigningError(f"{what}: the payload is {envelope['payloadType']}, not {_PAYLOAD_TYPE}")
    verify(public, _to_sign(payload), envelope["signatures"][0]["sig"], what)
    found: dict[str, Any] = json.loads(payload)
    return found


def verify_release(folder: Path, public: bytes) -> list[str]:
    """Check a folder that `make release` wrote; what was checked.

    Raises:
        SigningError: a signature is missing or wrong, or a file differs from what was signed.
    """
    try:
        sums = (folder / SUMS).read_bytes()
        verify(public, sums, (folder / SUMS_SIGNATURE).read_text(), SUMS)
        provenance = opened(public, json.loads((folder / ENVELOPE_FILE).read_bytes()), ENVELOPE_FILE)
    except OSError as error:
        raise SigningError(
            f"{error.filename} cannot be read ({error.strerror}): the release is not signed, or not complete"
        ) from error
    signed = {name: digest for digest, _, name in (line.partition("  ") for line in sums.decode().splitlines())}
    files = files_of(folder)
    if wrong := sorted(name for name in files.keys() | signed.keys() if files.get(name) != signed.get(name)):
        raise SigningError(f"{folder}: {', '.join(wrong[:5])}: missing, added or changed since it was signed")
    manifests = manifests_of(folder)
    about = {each["name"]: each["digest"]["sha256"] for each in provenance["subject"]}
    if about != _subjects(files, manifests):
        raise SigningError(f"{ENVELOPE_FILE} is about other files or manifests than those in {folder}")
    for name, digest in manifests.items():
        layout = oci.Layout(folder / SIGNATURES / name.rpartition(":")[0])
        verify_manifest(public, digest, layout, name)
    return [f"{len(files)} files", *(f"{name}@{digest}" for name, digest in manifests.items())]


def verify_manifest(public: bytes, digest: str, signatures: oci.Layout, name: str) -> None:
    """Check the signature and the provenance of one manifest.

    Raises:
        SigningError: one is missing or wrong.
    """
    tags = signatures.tags
    for kind in ("sig", "att"):
        tag = f"{digest.replace(':', '-')}.{kind}"
        if tag not in tags:
            raise SigningError(f"{name}: there is no {tag}: it is not signed")
        [layer] = json.loads(signatures.read(tags[tag]["digest"]))["layers"]
        content = signatures.read(layer["digest"])
        if kind == "sig":
            verify(public, content, layer["annotations"][oci.SIGNATURE], tag)
            about = json.loads(content)["critical"]["image"]["docker-manifest-digest"]
        else:
            [subject] = opened(public, json.loads(content), tag)["subject"]
            about = f"sha256:{subject['digest']['sha256']}"
        if about != digest:
            raise SigningError(f"{tag} is about {about}: do not use it")


def write_provenance(folder: Path, predicate: Mapping[str, Any]) -> None:
    """Write the statement about all files and manifests."""
    made = statement(_subjects(files_of(folder), manifests_of(folder)), predicate)
    (folder / STATEMENT_FILE).write_text(json.dumps(made, indent=2, sort_keys=True) + "\n")


def _subjects(files: Mapping[str, str], manifests: Mapping[str, str]) -> dict[str, str]:
    blobs = f"{IMAGES}/"
    kept = {name: digest for name, digest in files.items() if not name.startswith(blobs)}
    return kept | {name: digest.removeprefix("sha256:") for name, digest in manifests.items()}


def _to_sign(payload: bytes) -> bytes:
    """DSSE's pre-authentication encoding."""
    return b"DSSEv1 %d %s %d %s" % (len(_PAYLOAD_TYPE), _PAYLOAD_TYPE.encode(), len(payload), payload)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Verify a folder that `make release` wrote.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("key", type=Path, help="public key in PEM, from a place that you trust")
    given = parser.parse_args(arguments)
    try:
        checked = verify_release(given.folder, given.key.read_bytes())
    except (OSError, SigningError) as error:
        print(error, file=sys.stderr)
        return 1
    print("signed:", *checked, sep="\n  ")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
