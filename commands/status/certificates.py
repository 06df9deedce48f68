"""Checks of the serving certificate: its validity, its CA in every caBundle, and what replicas serve."""

import base64
import binascii
import datetime as dt
import hashlib
from collections.abc import Iterator, Sequence
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes

from cluster.kinds.replicas import Replica
from commands.cluster.reader import Unseen
from commands.cluster.rights import SECRET
from commands.present import listed
from commands.status.lines import StatusCheck, StatusLine
from commands.status.snapshot import NAME, StatusSnapshot, own_entries

CHECK: Final = StatusCheck("certificate")
NEAR_END: Final = dt.timedelta(days=7)

_NEW_ONE: Final = "Check the webhook's log for the reason, or put a new certificate into its Secret."


def check(snapshot: StatusSnapshot, replicas: Sequence[Replica], now: dt.datetime) -> Iterator[StatusLine]:
    """All checks of certificates. `replicas`: the living ones."""
    bundles = _bundles(snapshot)
    if len(set(bundles.values())) > 1:
        text = f"the caBundles of {listed(bundles)} differ: some calls fail after the next change of the certificate."
        yield CHECK.wrong(text, "Put the same CA into all of them.")
    authorities: list[x509.Certificate] = []
    for entry, bundle in bundles.items():
        try:
            authorities += x509.load_pem_x509_certificates(bundle)
        except ValueError:
            text = f"the caBundle of {entry} contains no PEM certificate: every call fails."
            yield CHECK.wrong(text, "Put the CA of the serving certificate there.")
    if authorities and all(each.not_valid_after_utc <= now for each in authorities):
        latest = max(each.not_valid_after_utc for each in authorities)
        text = f"every CA in the caBundles has expired, the last on {latest:%Y-%m-%d}: every call fails."
        yield CHECK.wrong(text, _NEW_ONE)
    yield from _taken(bundles, replicas)
    yield from _leaf(snapshot, authorities, replicas, now)


def _bundles(snapshot: StatusSnapshot) -> dict[str, bytes]:
    """The caBundles of the webhook configurations, by entry; entries without one are left out."""
    entries = own_entries(snapshot.mutating, snapshot.validating)
    texts = {entry["name"]: (entry.get("clientConfig") or {}).get("caBundle") for entry in entries}
    return {name: _decoded(text) for name, text in texts.items() if text}


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text)
    except (binascii.Error, ValueError):
        return b""


def _taken(bundles: dict[str, bytes], replicas: Sequence[Replica]) -> Iterator[StatusLine]:
    digests = {hashlib.sha256(bundle).hexdigest() for bundle in bundles.values()}
    others = [each.name for each in replicas if each.report.bundle and each.report.bundle not in digests]
    if others and digests:
        text = f"replicas {listed(others)} use another CA bundle than the configurations, as during a rotation."
        yield CHECK.note(text)


def _leaf(
    snapshot: StatusSnapshot, authorities: Sequence[x509.Certificate], replicas: Sequence[Replica], now: dt.datetime
) -> Iterator[StatusLine]:
    secret = snapshot.secret
    if isinstance(secret, Unseen):
        yield from _reported(replicas, secret, now)
    elif not secret:
        if not any(each.report.serving for each in replicas):
            text = f"Secret {snapshot.namespace}/{SECRET} does not exist."
            yield CHECK.wrong(
                text, "Create it without data: `helm upgrade` does. The webhook, or cert-manager, writes it."
            )
        else:
            yield from _reported(replicas, None, now)
    else:
        pem = _decoded((secret[0].get("data") or {}).get("tls.crt") or "")
        try:
            leaf = x509.load_pem_x509_certificate(pem)
        except ValueError:
            text = f"tls.crt in Secret {snapshot.namespace}/{SECRET} is not a PEM certificate."
            yield CHECK.wrong(text, _NEW_ONE)
        else:
            yield from _judge(snapshot, leaf, authorities, replicas, now)


def _judge(
    snapshot: StatusSnapshot,
    leaf: x509.Certificate,
    authorities: Sequence[x509.Certificate],
    replicas: Sequence[Replica],
    now: dt.datetime,
) -> Iterator[StatusLine]:
    if authorities and not any(_vouches(each, leaf) for each in authorities):
        text = f"no CA in the caBundles signed the certificate in Secret {SECRET}: every call fails."
        yield CHECK.wrong(text, "Put its CA into the caBundles; see docs/certificates.md.")
    host = f"{NAME}.{snapshot.namespace}.svc"
    if host not in _hosts(leaf):
        text = f"the certificate is not valid for {host}, the name that the API server calls."
        yield CHECK.wrong(text, f"Create one whose subjectAltName has DNS:{host}.")
    digest = leaf.fingerprint(hashes.SHA256()).hex()
    stale = [each.name for each in replicas if each.report.serving and each.report.serving != digest]
    if stale:
        text = f"replicas {listed(stale)} serve another certificate than Secret {SECRET}, as during a rotation."
        yield CHECK.note(text)
    yield _validity(leaf.not_valid_after_utc, now)


def _vouches(authority: x509.Certificate, leaf: x509.Certificate) -> bool:
    if authority == leaf:  # self-signed
        return True
    try:
        leaf.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _hosts(leaf: x509.Certificate) -> list[str]:
    try:
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return []
    return names.get_values_for_type(x509.DNSName)


def _reported(replicas: Sequence[Replica], unseen: Unseen | None, now: dt.datetime) -> Iterator[StatusLine]:
    """Check the certificate that replicas report, if the Secret cannot be read or does not exist."""
    ends = [end for each in replicas if (end := _moment(each.report.not_after)) is not None]
    if ends:
        yield _validity(min(ends), now)
    elif unseen is not None:
        yield CHECK.unknown(f"{unseen.why} No replica reports its certificate either.", unseen.fix)


def _moment(text: str) -> dt.datetime | None:
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)


def _validity(end: dt.datetime, now: dt.datetime) -> StatusLine:
    day = f"{end:%Y-%m-%d %H:%M} UTC"
    if end <= now:
        return CHECK.wrong(f"the serving certificate expired on {day}: every call fails.", _NEW_ONE)
    if end - now < NEAR_END:
        return CHECK.note(f"the serving certificate expires soon, on {day}.", _NEW_ONE)
    return CHECK.well(f"valid until {day}.")
