"""The next step of a Secret of certificates. Pure: content and time in, new content out.

A CA is replaced in three writes (C: current CA, N: next CA):

    steady    ca.crt = C        leaf by C
    joining   ca.crt = C N      leaf by C    next-ca.* = N   until all clients have had the bundle for `settle`
    leaving   ca.crt = N C      leaf by N                    until all replicas have served the leaf for `retire`
    steady    ca.crt = N        leaf by N

So every leaf that a replica may still serve is signed by a CA of every bundle that a client may still have. To replace
only a leaf takes one write, because its CA stays.
"""

import dataclasses
import datetime as dt
from collections.abc import Mapping
from typing import Final

from cryptography import x509

from certs import material
from certs.material import Material, ServingCertificate

ROTATE_CA: Final = "ca"
ROTATE_LEAF: Final = "leaf"

_CA_RENEWAL: Final = 10
"""A CA is replaced when 1/10 of its lifetime is left: one year of ten, enough time to fix what blocks it."""
_LEAF_RENEWAL: Final = 3
"""A leaf is replaced when 1/3 of its lifetime is left, as by cert-manager and ACME clients."""


@dataclasses.dataclass(frozen=True, slots=True)
class Rules:
    """Requirements for the certificates.

    Attributes:
        hosts: DNS names and IP addresses that the leaf must contain.
        ca_lifetime: of a new CA.
        leaf_lifetime: of a new leaf.
        settle: how long all bundles must contain a new CA before it signs. API servers watch webhook configurations
            with a delay, and the API does not report when the last one has caught up.
        retire: how long all replicas must serve a leaf of the new CA before the old CA leaves the bundle.
    """

    hosts: tuple[str, ...]
    ca_lifetime: dt.timedelta = dt.timedelta(days=3650)
    leaf_lifetime: dt.timedelta = dt.timedelta(days=90)
    settle: dt.timedelta = dt.timedelta(seconds=60)
    retire: dt.timedelta = dt.timedelta(seconds=300)


@dataclasses.dataclass(frozen=True, slots=True)
class Confirmed:
    """For how long the content of the Secret has been in use; None: not everywhere yet.

    Attributes:
        bundle: every live replica has loaded the bundle, and every webhook configuration contains it.
        serving: every live replica serves the leaf.
    """

    bundle: dt.timedelta | None = None
    serving: dt.timedelta | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class RotationStep:
    """The next step.

    Attributes:
        data: the whole new content; None: no change.
        reason: for people: the change and its reason, or the condition that the rotation waits for; empty: no step.
        answered: whether the requested rotation has begun or is invalid, so that the request can be removed.
    """

    data: dict[str, bytes] | None = dataclasses.field(repr=False)
    reason: str
    answered: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class _Case:
    held: Material
    now: dt.datetime
    rules: Rules
    confirmed: Confirmed
    requested: str
    known: Mapping[str, bytes] | None
    refused: str


def advance(
    data: Mapping[str, bytes] | None,
    *,
    now: dt.datetime,
    rules: Rules,
    confirmed: Confirmed,
    requested: str = "",
    known: Mapping[str, bytes] | None = None,
    refused: str = "",
) -> RotationStep:
    """The next step.

    Args:
        data: content of the Secret; None: no Secret.
        now: a time with time zone, by the API server's clock.
        confirmed: for how long exactly this content has been in use.
        requested: the rotation to begin: `ca` or `leaf`; empty: none.
        known: the last content that could be served. It is written back if the Secret lost it, or if a repair of the
            new content would break clients that trust the known content.
        refused: why this replica can use neither the leaf of this content nor its bundle; empty if it can.

    Raises:
        ValueError: a host of the rules is not valid in a certificate.
    """
    try:
        held = material.read(data or {})
    except material.UnusableError as why:
        lost = f"the Secret cannot be used: {why}" if data is not None else "there is no Secret"
        return _restored(lost, known, now) or RotationStep(
            _all_new(now, rules), f"{lost}; new CA and serving certificate made"
        )
    if requested not in ("", ROTATE_CA, ROTATE_LEAF):
        return RotationStep(
            None, f"there is no rotation '{requested}': ask for '{ROTATE_CA}' or '{ROTATE_LEAF}'", answered=True
        )
    case = _Case(held, now, rules, confirmed, requested, known if known != data else None, refused)
    for rule in (_refused, _unfit_ca, _unfit_leaf, _ending_leaf, _joining, _leaving, _ending_ca):
        step = rule(case)
        if step is not None:
            return step
    return RotationStep(None, "")


def serves(data: Mapping[str, bytes], now: dt.datetime) -> bool:
    """Whether the bundle verifies the leaf at that time."""
    try:
        held = material.read(data)
    except material.UnusableError:
        return False
    if held.leaf is None or held.leaf.anchor is None:
        return False
    return not (material.fault(held.leaf.certificate, now) or material.fault(held.leaf.anchor, now))


def _refused(case: _Case) -> RotationStep | None:
    return _restored(case.refused, case.known, case.now) if case.refused else None


def _unfit_ca(case: _Case) -> RotationStep | None:
    """Replace an invalid CA at once: it verifies no certificate, so an overlap has no use."""
    why = material.fault(case.held.current, case.now)
    if not why:
        return None
    why = f"the CA {why}"
    return _restored(why, case.known, case.now) or _at_once(case, why)


def _restored(why: str, known: Mapping[str, bytes] | None, now: dt.datetime) -> RotationStep | None:
    if known is None or not serves(known, now):
        return None
    return RotationStep(dict(known), f"{why}; written back as it was")


def _unfit_leaf(case: _Case) -> RotationStep | None:
    why = _leaf_fault(case)
    if not why:
        return None
    if case.held.authority is None:
        why = f"the serving certificate cannot be used ({why}), and the key of its CA is missing"
        return _restored(why, case.known, case.now) or _at_once(case, why)
    # Clients that trust the known content would not accept a leaf of a new CA.
    restored = _restored(f"the CA was exchanged, and {why}", case.known, case.now)
    if restored is not None and case.held.current not in material.read(case.known or {}).bundle:
        return restored
    return _new_leaf(case, f"new serving certificate: {why}")


def _leaf_fault(case: _Case) -> str:
    held, leaf = case.held, case.held.leaf
    if leaf is None:
        return held.leaf_fault
    why = material.fault(leaf.certificate, case.now)
    if why:
        return f"the old one {why}"
    if leaf.anchor is None or (leaf.anchor != held.current and held.key is not None):
        return "the old one was not signed by the current CA"
    missing = material.uncovered(leaf.certificate, case.rules.hosts)
    # Without the CA's key no new leaf can be signed, so an accepted leaf with missing hosts stays.
    if missing and held.key is not None:
        return f"the old one does not name {', '.join(missing)}"
    return ""


def _ending_leaf(case: _Case) -> RotationStep | None:
    if case.held.authority is None or case.held.leaf is None:
        return None
    if case.requested == ROTATE_LEAF:
        step = _new_leaf(case, "new serving certificate: requested")
        return dataclasses.replace(step, answered=True)
    lifetime, ends = case.rules.leaf_lifetime, case.held.leaf.certificate.not_valid_after_utc
    new_end = min(case.now + lifetime, case.held.current.not_valid_after_utc)
    # A leaf cannot outlive its CA: near the end of the CA, a new leaf would not be valid much longer.
    if ends - case.now > lifetime / _LEAF_RENEWAL or new_end - ends < lifetime / _LEAF_RENEWAL:
        return None
    return _new_leaf(case, f"new serving certificate: the old one ends on {ends.isoformat()}")


def _joining(case: _Case) -> RotationStep | None:
    held, coming = case.held, case.held.next
    if coming is None:
        return None
    if material.fault(coming.certificate, case.now) or _ends_soon(coming.certificate, case):
        dropped = dataclasses.replace(held, next=None)
        return RotationStep(
            dropped.encode(), "the next CA waited for too long; dropped before anything was signed by it"
        )
    if coming.certificate not in held.bundle:
        joined = dataclasses.replace(held, bundle=(*held.bundle, coming.certificate))
        return RotationStep(joined.encode(), "the next CA was not in the bundle; put there")
    since = case.confirmed.bundle
    if since is None or since < case.rules.settle:
        return RotationStep(
            None, "the next CA is in the bundle, and signs once every replica and configuration has had it long enough"
        )
    return _promoted(case, "the next CA took over")


def _leaving(case: _Case) -> RotationStep | None:
    held, now = case.held, case.now
    others = held.bundle[1:]  # without a next CA, which `_joining` waits for
    if not others:
        return None
    if held.leaf is None or held.leaf.anchor != held.current:
        return None  # the served leaf needs one of them
    gone = tuple(ca for ca in others if material.fault(ca, now))
    since = case.confirmed.serving
    if since is not None and since >= case.rules.retire:
        gone = others
    if not gone:
        return RotationStep(
            None, "an old CA stays in the bundle until every replica has served a newer certificate long enough"
        )
    kept = dataclasses.replace(held, bundle=tuple(ca for ca in held.bundle if ca not in gone))
    return RotationStep(
        kept.encode(), f"old CA left the bundle: {', '.join(ca.subject.rfc4514_string() for ca in gone)}"
    )


def _ending_ca(case: _Case) -> RotationStep | None:
    held = case.held
    if case.requested == ROTATE_CA:
        why = "requested"
    elif held.key is None:
        why = "the key of the old one is missing"
    elif _ends_soon(held.current, case):
        why = f"the old one ends on {held.current.not_valid_after_utc.isoformat()}"
    else:
        return None
    coming = _new_ca(case.now, case.rules)
    joined = dataclasses.replace(held, bundle=(*held.bundle, coming.certificate), next=coming)
    return RotationStep(joined.encode(), f"new CA joins the bundle: {why}", answered=case.requested == ROTATE_CA)


def _at_once(case: _Case, why: str) -> RotationStep:
    """Replace the CA without overlap: the next CA takes over, or all certificates are new."""
    coming = case.held.next
    if coming is not None and not material.fault(coming.certificate, case.now):
        return _promoted(case, f"{why}; the next CA took over at once")
    return RotationStep(_all_new(case.now, case.rules), f"{why}; new CA and serving certificate made at once")


def _promoted(case: _Case, reason: str) -> RotationStep:
    coming = case.held.next
    if coming is None:
        raise ValueError("There is no next CA.")
    others = (ca for ca in case.held.bundle if ca != coming.certificate and not material.fault(ca, case.now))
    leaf = _issue_leaf(coming, case.now, case.rules)
    return RotationStep(Material((coming.certificate, *others), coming.key, leaf, "", None).encode(), reason)


def _new_leaf(case: _Case, reason: str) -> RotationStep:
    authority = case.held.authority
    if authority is None:
        raise ValueError("The key of the CA is missing.")
    leaf = _issue_leaf(authority, case.now, dataclasses.replace(case.rules, hosts=_hosts(case)))
    return RotationStep(dataclasses.replace(case.held, leaf=leaf).encode(), reason)


def _hosts(case: _Case) -> tuple[str, ...]:
    """The hosts of a new leaf.

    Replicas may have different hosts in their settings, for example during a rollout. If each removed the hosts of the
    others, they would replace the leaf in a loop. Hosts that no replica needs are dropped at the next renewal.
    """
    needed, leaf = case.rules.hosts, case.held.leaf
    if leaf is None or not material.uncovered(leaf.certificate, needed):
        return needed
    return tuple(dict.fromkeys((*needed, *material.hosts(leaf.certificate))))[:100]


def _all_new(now: dt.datetime, rules: Rules) -> dict[str, bytes]:
    authority = _new_ca(now, rules)
    leaf = _issue_leaf(authority, now, rules)
    return Material((authority.certificate,), authority.key, leaf, "", None).encode()


def _new_ca(now: dt.datetime, rules: Rules) -> material.Authority:
    # A different name for each CA is for people; clients use the key identifier.
    return material.make_authority(f"neuron-dra CA {now:%Y-%m-%dT%H:%M:%SZ}", now=now, lifetime=rules.ca_lifetime)


def _issue_leaf(authority: material.Authority, now: dt.datetime, rules: Rules) -> ServingCertificate:
    pair = material.issue_serving(authority, "neuron-dra", rules.hosts, now=now, lifetime=rules.leaf_lifetime)
    return ServingCertificate(pair, x509.load_pem_x509_certificate(pair.certificate_pem), authority.certificate)


def _ends_soon(ca: x509.Certificate, case: _Case) -> bool:
    return ca.not_valid_after_utc - case.now <= case.rules.ca_lifetime / _CA_RENEWAL
