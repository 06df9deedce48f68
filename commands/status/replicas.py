"""Checks of the webhook: Deployment, Service, the Lease of each replica, and the certificate that they serve."""

import base64
import binascii
import datetime as dt
import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes

from cluster.kinds.replicas import SELECTOR, Replica, read_lease
from commands.cluster.reader import Object, Unseen, items
from commands.present import listed
from commands.status.lines import StatusCheck, StatusLine
from commands.status.snapshot import NAME, SECRET, StatusSnapshot, own_deployments, own_entries
from runtime.text import cited, counted, named

CHECK: Final = StatusCheck("replicas")
SERVICE: Final = StatusCheck("service")
POLICIES: Final = StatusCheck("policies")

_LOOK: Final = "kubectl -n {} get pods -l app.kubernetes.io/component=webhook"
_SAME: Final[tuple[tuple[str, Callable[[Replica], str]], ...]] = (
    ("versions", lambda replica: replica.report.version),
    ("modes", lambda replica: replica.report.mode),
    ("CA bundles", lambda replica: replica.report.bundle[:12]),
    ("certificates", lambda replica: replica.report.serving[:12]),
    ("policies", lambda replica: replica.report.policies[:12]),
)


def living(snapshot: StatusSnapshot, now: dt.datetime) -> tuple[Replica, ...]:
    """Replicas whose Lease has not expired, by name."""
    return tuple(each for each in _replicas(snapshot) if each.lives(now))


def _replicas(snapshot: StatusSnapshot) -> list[Replica]:
    return sorted(filter(None, map(read_lease, items(snapshot.leases))), key=lambda replica: replica.name)


def check(snapshot: StatusSnapshot, now: dt.datetime) -> Iterator[StatusLine]:
    """Check the Deployment, then the Leases."""
    yield from _deployment(snapshot)
    if isinstance(snapshot.leases, Unseen):
        yield CHECK.unseen(snapshot.leases)
        return
    alive = living(snapshot, now)
    gone = [each for each in _replicas(snapshot) if not each.lives(now)]
    if gone:
        last = max(each.renewed for each in gone)
        text = f"{counted(len(gone), 'replica')} stopped reporting, the last on {last:%Y-%m-%d %H:%M} UTC: "
        yield CHECK.note(f"{text}{listed(named(each.name) for each in gone)}.")
    serving = _serving(snapshot)
    for each in alive:
        if serving is not None and each.report.ready and each.name not in serving:
            text = f"{named(each.name)} reported to be ready at {each.renewed:%H:%M:%S} UTC, and its pod is no ready"
            yield CHECK.note(
                f"{text} endpoint of the Service: it was killed or deleted, or its node does not answer.",
                _LOOK.format(snapshot.namespace),
            )
        else:
            yield from _replica(each)
    yield from _differences(alive)
    if not alive:
        yield CHECK.note("no replica reports on itself by a Lease.")


def _deployment(snapshot: StatusSnapshot) -> Iterator[StatusLine]:
    if isinstance(snapshot.deployments, Unseen):
        yield CHECK.unseen(snapshot.deployments)
        return
    ours = own_deployments(snapshot.deployments, snapshot.namespace)
    if not ours and snapshot.outside:
        yield CHECK.note("the webhook runs outside the cluster: its configurations call a URL.")
    elif not ours:
        text = f"there is no Deployment with labels {SELECTOR} in namespace {snapshot.namespace}."
        yield CHECK.wrong(text, "Set --namespace to its namespace, or install it.")
    for item in ours:
        yield _availability(item, snapshot.namespace)


def _availability(item: Object, namespace: str) -> StatusLine:
    name, status = item["metadata"]["name"], item.get("status") or {}
    wanted, available = item["spec"].get("replicas", 1), status.get("availableReplicas") or 0
    text = f"Deployment {name}: {available} of {wanted} available"
    if available < wanted or not wanted:
        fix = _LOOK.format(namespace) if wanted else f"kubectl -n {namespace} scale deployment {name} --replicas=2"
        return CHECK.wrong(f"{text}.", fix)
    if (status.get("updatedReplicas") or 0) < wanted:
        return CHECK.note(f"{text}, a rollout is under way.")
    return CHECK.well(f"{text}.")


def _serving(snapshot: StatusSnapshot) -> set[str] | None:
    """Names of the pods that are ready endpoints; None if the endpoints do not tell: they are not seen, or no pods."""
    if isinstance(snapshot.endpoint_slices, Unseen) or not snapshot.service or snapshot.outside:
        return None
    endpoints = _endpoints(snapshot.endpoint_slices)
    if any((each.get("targetRef") or {}).get("kind") != "Pod" for each in endpoints):
        return None
    return {each["targetRef"]["name"] for each in endpoints if _receives(each)}


def _endpoints(slices: Iterable[Object]) -> list[Object]:
    return [each for item in slices for each in item.get("endpoints") or ()]


def _receives(endpoint: Object) -> bool:
    """Whether an endpoint gets requests; discovery.k8s.io/v1: no condition means ready."""
    return bool((endpoint.get("conditions") or {}).get("ready", True))


def _replica(replica: Replica) -> Iterator[StatusLine]:
    report = replica.report
    if not report.ready:
        why = "; ".join(map(cited, report.problems)) or "it reports no reason"
        yield CHECK.wrong(f"{named(replica.name)} is not ready: {why}.")
        return
    parts = (report.version and f"version {named(report.version)}", report.mode and f"mode {named(report.mode)}")
    what = ", ".join(filter(None, parts))
    yield CHECK.well(f"{named(replica.name)} is ready{': ' + what if what else ''}.")
    for problem in report.problems:
        yield CHECK.note(f"{named(replica.name)} reports: {cited(problem)}.")


def _differences(replicas: Sequence[Replica]) -> Iterator[StatusLine]:
    for words, value in _SAME:
        groups: defaultdict[str, list[str]] = defaultdict(list)
        for each in replicas:
            groups[value(each)].append(each.name)
        if len(groups) > 1:
            shown = "; ".join(f"{named(key or 'none')}: {listed(names)}" for key, names in sorted(groups.items()))
            yield CHECK.note(f"replicas differ in their {words}: {shown}. Normal during a rollout.")


def check_service(snapshot: StatusSnapshot) -> Iterator[StatusLine]:
    """Check that calls can reach the webhook."""
    if snapshot.outside:
        return
    for seen in (snapshot.service, snapshot.endpoint_slices):
        if isinstance(seen, Unseen):
            yield SERVICE.unseen(seen)
    if isinstance(snapshot.service, Unseen):
        return
    where = f"Service {snapshot.namespace}/{NAME}"
    if not snapshot.service:
        yield SERVICE.wrong(f"{where} does not exist: no call can arrive.", "Apply it as shipped.")
        return
    if isinstance(snapshot.endpoint_slices, Unseen):
        return
    if ready := sum(map(_receives, _endpoints(snapshot.endpoint_slices))):
        yield SERVICE.well(f"{where}: {counted(ready, 'ready endpoint')}.")
    else:
        text = f"{where} has no ready endpoint: every call fails."
        yield SERVICE.wrong(text, _LOOK.format(snapshot.namespace))


def check_policies(replicas: Sequence[Replica]) -> Iterator[StatusLine]:
    """Check the active policies, and refused changes."""
    refused = [each for each in replicas if each.report.policies_problem]
    for each in refused:
        since = f" of {named(each.report.policies_since)}" if each.report.policies_since else ""
        text = f"{named(each.name)} keeps its last valid policies{since}: {cited(each.report.policies_problem)}"
        yield POLICIES.wrong(text, "Fix the policy file; `neuron-dra policy check` reads it as the webhook does.")
    digests = sorted({each.report.policies[:12] for each in replicas if each.report.policies})
    if digests and not refused:
        yield POLICIES.well(f"in force: {listed(map(named, digests))}.")
    if replicas and not digests:
        yield POLICIES.well("none.")


# --- the serving certificate: its validity, its CA in every caBundle, and what replicas serve -------------------------


CERTIFICATE: Final = StatusCheck("certificate")
NEAR_END: Final = dt.timedelta(days=7)

_NEW_ONE: Final = "Check the webhook's log for the reason, or put a new certificate into its Secret."


def check_certificate(snapshot: StatusSnapshot, replicas: Sequence[Replica], now: dt.datetime) -> Iterator[StatusLine]:
    """All checks of certificates. `replicas`: the living ones."""
    entries = own_entries(snapshot.mutating, snapshot.validating)
    texts = {entry["name"]: (entry.get("clientConfig") or {}).get("caBundle") for entry in entries}
    bundles = {name: _decoded(text) for name, text in texts.items() if text}
    if len(set(bundles.values())) > 1:
        text = f"the caBundles of {listed(bundles)} differ: some calls fail after the next change of the certificate."
        yield CERTIFICATE.wrong(text, "Put the same CA into all of them.")
    authorities: list[x509.Certificate] = []
    for entry, bundle in bundles.items():
        try:
            authorities += x509.load_pem_x509_certificates(bundle)
        except ValueError:
            text = f"the caBundle of {entry} contains no PEM certificate: every call fails."
            yield CERTIFICATE.wrong(text, "Put the CA of the serving certificate there.")
    if authorities and all(each.not_valid_after_utc <= now for each in authorities):
        latest = max(each.not_valid_after_utc for each in authorities)
        text = f"every CA in the caBundles has expired, the last on {latest:%Y-%m-%d}: every call fails."
        yield CERTIFICATE.wrong(text, _NEW_ONE)
    digests = {hashlib.sha256(bundle).hexdigest() for bundle in bundles.values()}
    others = [each.name for each in replicas if each.report.bundle and each.report.bundle not in digests]
    if others and digests:
        text = f"replicas {listed(others)} use another CA bundle than the configurations, as during a rotation."
        yield CERTIFICATE.note(text)
    yield from _leaf(snapshot, authorities, replicas, now)


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text)
    except (binascii.Error, ValueError):
        return b""


def _leaf(
    snapshot: StatusSnapshot, authorities: Sequence[x509.Certificate], replicas: Sequence[Replica], now: dt.datetime
) -> Iterator[StatusLine]:
    secret = snapshot.secret
    if isinstance(secret, Unseen):
        yield from _reported(replicas, secret, now)
    elif not secret:
        if not any(each.report.serving for each in replicas):
            text = f"Secret {snapshot.namespace}/{SECRET} does not exist."
            yield CERTIFICATE.wrong(
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
            yield CERTIFICATE.wrong(text, _NEW_ONE)
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
        yield CERTIFICATE.wrong(text, "Put its CA into the caBundles; see docs/certificates.md.")
    host = f"{NAME}.{snapshot.namespace}.svc"
    if host not in _hosts(leaf):
        text = f"the certificate is not valid for {host}, the name that the API server calls."
        yield CERTIFICATE.wrong(text, f"Create one whose subjectAltName has DNS:{host}.")
    digest = leaf.fingerprint(hashes.SHA256()).hex()
    stale = [each.name for each in replicas if each.report.serving and each.report.serving != digest]
    if stale:
        text = f"replicas {listed(stale)} serve another certificate than Secret {SECRET}, as during a rotation."
        yield CERTIFICATE.note(text)
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
        yield CERTIFICATE.unknown(f"{unseen.why} No replica reports its certificate either.", unseen.fix)


def _moment(text: str) -> dt.datetime | None:
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)


def _validity(end: dt.datetime, now: dt.datetime) -> StatusLine:
    day = f"{end:%Y-%m-%d %H:%M} UTC"
    if end <= now:
        return CERTIFICATE.wrong(f"the serving certificate expired on {day}: every call fails.", _NEW_ONE)
    if end - now < NEAR_END:
        return CERTIFICATE.note(f"the serving certificate expires soon, on {day}.", _NEW_ONE)
    return CERTIFICATE.well(f"valid until {day}.")
