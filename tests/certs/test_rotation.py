"""The steps of a rotation, one by one and in every order that replicas may take them."""

import dataclasses
import datetime as dt
import functools
from collections.abc import Mapping

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given, settings
from hypothesis import strategies as st

from certs import material, rotation
from certs.rotation import Confirmed, RotationStep, Rules

NOW = dt.datetime(2026, 7, 1, 12, tzinfo=dt.UTC)
DAY = dt.timedelta(days=1)
SECOND = dt.timedelta(seconds=1)
RULES = Rules(hosts=("neuron-dra.neuron-dra.svc", "127.0.0.1"), settle=10 * SECOND, retire=50 * SECOND)
LONG = Confirmed(dt.timedelta(hours=1), dt.timedelta(hours=1))
NOBODY = Confirmed()
Data = Mapping[str, bytes]


def step(data: Data | None, now: dt.datetime = NOW, confirmed: Confirmed = NOBODY, **more: object) -> RotationStep:
    return rotation.advance(data, now=now, rules=RULES, confirmed=confirmed, **more)  # type: ignore[arg-type]


def content(taken: RotationStep) -> dict[str, bytes]:
    assert taken.data is not None, taken.reason
    return taken.data


@pytest.fixture(scope="module")
def fresh() -> Data:
    return content(step(None))


@pytest.fixture(scope="module")
def joining(fresh: Data) -> Data:
    return content(step(fresh, requested="ca"))


@pytest.fixture(scope="module")
def leaving(joining: Data) -> Data:
    return content(step(joining, confirmed=LONG))


def cas(data: Data) -> list[x509.Certificate]:
    return list(material.read(data).bundle)


def without(data: Data, *keys: str) -> Data:
    return {key: value for key, value in data.items() if key not in keys}


def test_a_missing_secret_gets_a_new_ca_and_certificate(fresh: Data) -> None:
    held = material.read(fresh)
    assert held.leaf is not None
    assert held.leaf.anchor == held.current
    assert material.uncovered(held.leaf.certificate, RULES.hosts) == []
    assert held.current.not_valid_after_utc - NOW == 3650 * DAY
    assert held.leaf.certificate.not_valid_after_utc - NOW == 90 * DAY
    assert step(None).reason == "there is no Secret; new CA and serving certificate made"


def test_valid_content_is_unchanged(fresh: Data) -> None:
    assert step(fresh, confirmed=LONG) == RotationStep(None, "")


def test_content_that_was_read_is_written_the_same(fresh: Data, joining: Data, leaving: Data) -> None:
    for data in (fresh, joining, leaving):
        assert material.read(data).encode() == data


def test_keys_are_not_shown() -> None:
    assert "PRIVATE" not in repr(step(None))


class TestLeaf:
    @pytest.mark.parametrize(("days", "renewed"), [(59, False), (61, True)])
    def test_is_replaced_when_a_third_is_left(self, fresh: Data, days: int, renewed: bool) -> None:
        taken = step(fresh, NOW + days * DAY)
        assert (taken.data is not None) is renewed
        if taken.data is not None:
            assert cas(taken.data) == cas(fresh)
            assert taken.data["tls.crt"] != fresh["tls.crt"]

    def test_is_replaced_on_demand(self, fresh: Data) -> None:
        taken = step(fresh, requested="leaf")
        assert taken.answered
        assert cas(content(taken)) == cas(fresh)
        assert content(taken)["tls.crt"] != fresh["tls.crt"]

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            pytest.param({"tls.crt": b""}, "there is no tls.crt", id="missing"),
            pytest.param({"tls.crt": b"x"}, "tls.crt holds no PEM certificates", id="garbage"),
            pytest.param({"tls.key": b""}, "there is no tls.key", id="no key"),
            pytest.param({"tls.key": b"x"}, "tls.key is not a PEM private key", id="garbage key"),
        ],
    )
    def test_that_cannot_be_used_is_replaced(self, fresh: Data, change: Data, reason: str) -> None:
        taken = step({**fresh, **change})
        assert taken.reason == f"new serving certificate: {reason}"
        assert cas(content(taken)) == cas(fresh)

    def test_with_a_foreign_key_is_replaced(self, fresh: Data) -> None:
        other = content(step(None))
        assert "tls.key does not belong to tls.crt" in step({**fresh, "tls.key": other["tls.key"]}).reason

    def test_of_another_ca_is_replaced(self, fresh: Data) -> None:
        other = content(step(None))
        taken = step({**fresh, "tls.crt": other["tls.crt"], "tls.key": other["tls.key"]})
        assert taken.reason == "new serving certificate: the old one was not signed by the current CA"

    def test_for_other_hosts_is_replaced(self, fresh: Data) -> None:
        rules = dataclasses.replace(RULES, hosts=(*RULES.hosts, "other.svc"))
        taken = rotation.advance(fresh, now=NOW, rules=rules, confirmed=NOBODY)
        assert taken.reason == "new serving certificate: the old one does not name other.svc"

    def test_for_more_hosts_keeps_the_old_hosts_until_renewal(self, fresh: Data) -> None:
        other = dataclasses.replace(RULES, hosts=(RULES.hosts[0], "10.0.0.1"))
        both = content(rotation.advance(fresh, now=NOW, rules=other, confirmed=NOBODY))
        for rules in (RULES, other):
            assert rotation.advance(both, now=NOW, rules=rules, confirmed=NOBODY).data is None
        renewed = material.read(content(step(both, NOW + 61 * DAY))).leaf
        assert renewed is not None
        assert material.hosts(renewed.certificate) == list(RULES.hosts)

    def test_keeps_a_bounded_number_of_hosts(self, fresh: Data) -> None:
        data = fresh
        for start in range(0, 150, 50):
            hosts = tuple(f"10.0.{start}.{number}" for number in range(50))
            rules = dataclasses.replace(RULES, hosts=hosts)
            data = content(rotation.advance(data, now=NOW, rules=rules, confirmed=NOBODY))
        leaf = material.read(data).leaf
        assert leaf is not None
        assert len(material.hosts(leaf.certificate)) == 100
        assert material.uncovered(leaf.certificate, hosts) == []

    def test_that_expired_is_replaced(self, fresh: Data) -> None:
        assert "the old one expired on 2026-09-29" in step(fresh, NOW + 91 * DAY).reason

    def test_that_ends_with_its_ca_is_not_reissued_repeatedly(self) -> None:
        rules = dataclasses.replace(RULES, ca_lifetime=30 * DAY)
        data = content(rotation.advance(None, now=NOW, rules=rules, confirmed=NOBODY))
        joined = content(rotation.advance(data, now=NOW + 28 * DAY, rules=rules, confirmed=NOBODY))
        assert len(cas(joined)) == 2
        waiting = rotation.advance(joined, now=NOW + 29 * DAY, rules=rules, confirmed=NOBODY)
        assert waiting.data is None


class TestCA:
    def test_joins_the_bundle_before_it_signs(self, fresh: Data, joining: Data) -> None:
        held = material.read(joining)
        assert held.next is not None
        assert held.bundle == (*cas(fresh), held.next.certificate)
        assert joining["tls.crt"] == fresh["tls.crt"]
        assert step(fresh, requested="ca").answered

    @pytest.mark.parametrize(("years", "joins"), [(8.9, False), (9.1, True)])
    def test_is_replaced_when_a_tenth_is_left(self, years: float, joins: bool) -> None:
        then = NOW + years * 365 * DAY
        renewed = content(step(content(step(None)), then))  # its leaf, which ended long ago
        assert (step(renewed, then).data is not None) is joins

    @pytest.mark.parametrize("since", [None, 9 * SECOND])
    def test_does_not_sign_before_all_replicas_trusted_it_long_enough(
        self, joining: Data, since: dt.timedelta | None
    ) -> None:
        taken = step(joining, confirmed=Confirmed(since, None))
        assert taken.data is None
        assert "signs once every replica and configuration has had it long enough" in taken.reason

    def test_signs_while_the_old_ca_stays_in_the_bundle(self, fresh: Data, joining: Data, leaving: Data) -> None:
        held = material.read(leaving)
        coming = material.read(joining).next
        assert coming is not None
        assert held.bundle == (coming.certificate, *cas(fresh))
        assert held.leaf is not None
        assert held.leaf.anchor == coming.certificate
        assert held.authority is not None, "it has its key"
        assert "next-ca.crt" not in leaving

    @pytest.mark.parametrize("since", [None, 49 * SECOND])
    def test_stays_in_the_bundle_until_no_replica_serves_its_leaf(
        self, leaving: Data, since: dt.timedelta | None
    ) -> None:
        assert step(leaving, confirmed=Confirmed(None, since)).data is None

    def test_signs_and_leaves_on_time(self, joining: Data, leaving: Data) -> None:
        taken = step(joining, confirmed=Confirmed(RULES.settle, None))
        assert taken.reason == "the next CA took over"
        left = step(leaving, confirmed=Confirmed(None, RULES.retire))
        assert left.reason.startswith("old CA left the bundle: CN=neuron-dra CA 2026-07-01")

    def test_leaves_the_bundle_in_the_last_step(self, leaving: Data) -> None:
        assert cas(content(step(leaving, confirmed=LONG))) == cas(leaving)[:1]

    def test_requests_during_a_rotation_stay_unanswered(self, joining: Data, leaving: Data) -> None:
        assert not step(joining, requested="ca").answered
        assert not step(leaving, requested="ca").answered

    def test_that_expired_is_replaced_at_once(self, fresh: Data) -> None:
        taken = step(fresh, NOW + 3651 * DAY)
        assert "the CA expired on" in taken.reason
        assert not set(cas(content(taken))) & set(cas(fresh))

    def test_that_expired_is_replaced_by_the_waiting_next_ca(self, fresh: Data) -> None:
        later = NOW + 3600 * DAY
        joined = content(step(fresh, later, requested="ca")) if step(fresh, later).answered else fresh
        joined = content(step(content(step(fresh, later)), later))
        taken = step(joined, NOW + 3651 * DAY)
        assert "the next CA took over at once" in taken.reason
        assert cas(content(taken)) == cas(joined)[1:]

    def test_without_its_key_is_replaced_with_overlap(self, fresh: Data) -> None:
        taken = step(without(fresh, "ca.key"))
        assert taken.reason == "new CA joins the bundle: the key of the old one is missing"
        assert content(taken)["tls.crt"] == fresh["tls.crt"]
        assert cas(content(step(content(taken), confirmed=LONG)))[1:] == cas(fresh)

    def test_without_its_key_keeps_a_leaf_of_another_ca_of_the_bundle(self, joining: Data) -> None:
        current, coming = cas(joining)
        bundle = material.bundle_pem([coming, current])
        taken = step({**without(joining, "ca.key", "next-ca.crt", "next-ca.key"), "ca.crt": bundle}, confirmed=LONG)
        assert taken.reason == "new CA joins the bundle: the key of the old one is missing"
        assert content(taken)["tls.crt"] == joining["tls.crt"]
        assert cas(content(taken))[:2] == [coming, current], "clients still verify the leaf"

    def test_without_its_key_keeps_a_leaf_that_lacks_a_host(self, fresh: Data) -> None:
        rules = dataclasses.replace(RULES, hosts=(*RULES.hosts, "other.svc"))
        taken = rotation.advance(without(fresh, "ca.key"), now=NOW, rules=rules, confirmed=NOBODY)
        assert taken.reason == "new CA joins the bundle: the key of the old one is missing"
        assert content(taken)["tls.crt"] == fresh["tls.crt"]

    def test_without_its_key_signs_no_leaf_that_ends_soon(self, fresh: Data) -> None:
        taken = step(without(fresh, "ca.key"), NOW + 61 * DAY)
        assert taken.reason == "new CA joins the bundle: the key of the old one is missing"

    def test_without_its_key_does_not_keep_a_leaf_that_no_client_verifies(self, fresh: Data) -> None:
        other = content(step(None))
        taken = step({**without(other, "ca.key"), "ca.crt": fresh["ca.crt"]})
        assert taken.reason == (
            "the serving certificate cannot be used (the old one was not signed by the current CA), and the key of its "
            "CA is missing; new CA and serving certificate made at once"
        )

    @pytest.mark.parametrize("others", [False, True], ids=["no-key", "key-of-another"])
    def test_that_waits_is_nothing_without_its_key(self, joining: Data, leaving: Data, others: bool) -> None:
        changed = {**joining, "next-ca.key": leaving["tls.key"]} if others else without(joining, "next-ca.key")
        assert material.read(changed).next is None
        assert cas(content(step(changed, confirmed=LONG))) == cas(joining)[:1]

    def test_has_no_key_of_another(self, fresh: Data, leaving: Data) -> None:
        changed = {**fresh, "ca.key": leaving["ca.key"]}
        assert material.read(changed).key is None
        assert step(changed).reason == "new CA joins the bundle: the key of the old one is missing"

    def test_that_has_the_key_is_the_current_one(self, leaving: Data) -> None:
        turned = {**leaving, "ca.crt": material.bundle_pem(reversed(cas(leaving)))}
        assert cas(turned) == cas(leaving)
        assert material.read(turned).encode() == leaving

    def test_that_waits_too_long_is_dropped(self, fresh: Data) -> None:
        rules = dataclasses.replace(RULES, ca_lifetime=10 * DAY)
        joined = content(rotation.advance(fresh, now=NOW, rules=rules, confirmed=NOBODY, requested="ca"))
        taken = step(joined, confirmed=LONG)
        assert taken.reason == "the next CA waited for too long; dropped before anything was signed by it"
        assert content(taken) == without(joined, "next-ca.crt", "next-ca.key")

    def test_that_waits_and_is_not_valid_yet_is_dropped(self, fresh: Data) -> None:
        joined = content(step(fresh, NOW + 2 * DAY, requested="ca"))
        assert "next-ca.crt" not in content(step(joined, confirmed=LONG))

    def test_of_the_past_leaves_at_once_when_it_expires(self, fresh: Data) -> None:
        changed = NOW + 400 * DAY
        renewed = content(step(fresh, changed))
        left = content(step(content(step(renewed, changed, requested="ca")), changed, LONG))
        assert len(cas(left)) == 2
        assert step(left, NOW + 401 * DAY).data is None
        later = NOW + 3651 * DAY
        taken = step(content(step(left, later)), later)
        assert taken.reason.startswith("old CA left the bundle: CN=neuron-dra CA 2026-07-01")
        assert cas(content(taken)) == cas(left)[:1]

    def test_without_key_and_leaf_is_replaced_at_once(self, fresh: Data) -> None:
        assert "the key of its CA is missing; new CA" in step({"ca.crt": fresh["ca.crt"]}).reason

    def test_with_an_rsa_key_of_others_is_replaced_with_overlap(self, fresh: Data) -> None:
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        pem = material.key_pem(key)  # type: ignore[arg-type]
        assert "new CA joins the bundle" in step({**fresh, "ca.key": pem}).reason

    def test_that_was_removed_from_the_bundle_while_it_waits_is_added_again(self, fresh: Data, joining: Data) -> None:
        taken = step({**joining, "ca.crt": fresh["ca.crt"]})
        assert content(taken) == joining

    def test_that_others_added_is_removed_from_the_bundle(self, fresh: Data) -> None:
        stranger = content(step(None))["ca.crt"]
        assert content(step({**fresh, "ca.crt": fresh["ca.crt"] + stranger}, confirmed=LONG)) == fresh

    def test_not_valid_yet_is_replaced_at_once(self, fresh: Data) -> None:
        assert "the CA is not valid before" in step(fresh, NOW - DAY).reason


class TestLostContent:
    @pytest.mark.parametrize("lost", [None, {}, {"ca.crt": b"x"}, {"tls.crt": b"x"}])
    def test_content_is_written_back_as_it_was(self, fresh: Data, lost: Data | None) -> None:
        assert content(step(lost, known=fresh)) == fresh

    def test_the_reason_says_what_is_lost(self, fresh: Data) -> None:
        assert step(None, known=fresh).reason == "there is no Secret; written back as it was"
        assert step({}, known=fresh).reason == "the Secret cannot be used: there is no ca.crt; written back as it was"

    def test_a_ca_that_is_not_valid_gives_way_to_the_one_that_is_trusted(self, fresh: Data) -> None:
        taken = step(content(step(None, NOW + 2 * DAY)), known=fresh)
        assert content(taken) == fresh
        assert taken.reason.startswith("the CA is not valid before 2026-07-03")
        assert taken.reason.endswith("; written back as it was")

    @pytest.mark.parametrize("change", [{"ca.key": b"", "tls.key": b""}, {"tls.crt": b"x", "ca.key": b"x"}])
    def test_keys_are_written_back(self, fresh: Data, change: Data) -> None:
        taken = step({**fresh, **change}, known=fresh)
        assert content(taken) == fresh
        assert taken.reason.endswith("and the key of its CA is missing; written back as it was")

    def test_an_exchanged_ca_is_replaced_by_the_trusted_ca(self, fresh: Data) -> None:
        other = content(step(None))
        taken = step({**fresh, "ca.crt": other["ca.crt"], "ca.key": other["ca.key"]}, known=fresh)
        assert content(taken) == fresh
        assert taken.reason == (
            "the CA was exchanged, and the old one was not signed by the current CA; written back as it was"
        )

    def test_content_that_replicas_cannot_serve_is_replaced(self, fresh: Data) -> None:
        taken = step(content(step(None)), known=fresh, refused="of another type")
        assert (content(taken), taken.reason) == (fresh, "of another type; written back as it was")

    def test_a_complete_valid_exchange_is_accepted(self, fresh: Data) -> None:
        assert step(content(step(None)), known=fresh) == RotationStep(None, "")

    def test_writing_back_is_not_repeated(self, fresh: Data) -> None:
        faulty = {**fresh, "tls.key": b"x"}
        assert content(step(faulty, known=faulty)) != faulty
        assert step(fresh, known=fresh, refused="of another type").data is None

    def test_invalid_content_is_not_written_back(self, fresh: Data) -> None:
        later = NOW + 91 * DAY
        assert cas(content(step(None, later, known=fresh))) != cas(fresh)


@pytest.mark.parametrize(
    ("change", "serves"),
    [
        pytest.param({}, True, id="good"),
        pytest.param({"ca.key": b""}, True, id="no-ca-key"),
        pytest.param({"ca.crt": b""}, False, id="no-ca"),
        pytest.param({"tls.crt": b""}, False, id="no-certificate"),
        pytest.param({"tls.key": b""}, False, id="no-key"),
    ],
)
def test_content_serves_if_its_bundle_verifies_its_certificate(fresh: Data, change: Data, serves: bool) -> None:
    assert rotation.serves({**fresh, **change}, NOW) is serves


def test_content_with_another_bundle_or_at_another_time_does_not_serve(fresh: Data) -> None:
    assert not rotation.serves({**fresh, "ca.crt": content(step(None))["ca.crt"]}, NOW)
    assert not rotation.serves(fresh, NOW + 91 * DAY)
    assert not rotation.serves(fresh, NOW - DAY)


def test_each_step_of_a_rotation_says_its_cause(fresh: Data, leaving: Data) -> None:
    assert step(fresh, requested="leaf").reason == "new serving certificate: requested"
    assert step(fresh, NOW + 61 * DAY).reason == (
        "new serving certificate: the old one ends on 2026-09-29T12:00:00+00:00"
    )
    assert step(fresh, requested="ca").reason == "new CA joins the bundle: requested"
    later = NOW + 3600 * DAY
    assert step(content(step(fresh, later)), later).reason == (
        "new CA joins the bundle: the old one ends on 2036-06-28T12:00:00+00:00"
    )
    assert step(leaving).reason == (
        "an old CA stays in the bundle until every replica has served a newer certificate long enough"
    )


def test_an_unknown_rotation_is_reported_and_the_request_removed(fresh: Data) -> None:
    assert step(fresh, requested="all") == RotationStep(
        None, "there is no rotation 'all': ask for 'ca' or 'leaf'", answered=True
    )


# --- every order ----------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=4096)
def accepts(bundle: bytes, leaf: bytes) -> bool:
    chain = material.certificates(leaf, "tls.crt")
    return material.anchor(chain, material.certificates(bundle, "ca.crt")) is not None


class Since:
    def __init__(self) -> None:
        self.what: object = None
        self.begun: dt.datetime | None = None

    def elapsed(self, what: object, now: dt.datetime, holds: bool) -> dt.timedelta | None:
        if not holds:
            self.begun = None
        elif self.begun is None or what != self.what:
            self.what, self.begun = what, now
        return now - self.begun if holds and self.begun else None


@dataclasses.dataclass
class Replica:
    version: int = 0
    seen: Data | None = None
    known: Data | None = None
    serving: bytes = b""
    bundle: bytes = b""
    heard: dt.datetime = NOW
    stopped: bool = False
    bundle_since: Since = dataclasses.field(default_factory=Since)
    serving_since: Since = dataclasses.field(default_factory=Since)


class Fleet:
    """Replicas that share a Secret and a configuration, API servers that notice late, and a clock."""

    LEASE = 40 * SECOND

    def __init__(self, size: int) -> None:
        self.now = NOW
        self.version, self.secret, self.requested = 1, content(step(None)), ""
        self.deleted = False
        self.configured: list[tuple[dt.datetime, bytes]] = [(NOW - DAY, self.secret["ca.crt"])]
        self.replicas = [Replica() for _ in range(size)]
        for replica in self.replicas:
            self.observe(replica)

    def alive(self, replica: Replica) -> bool:
        return self.now - replica.heard < self.LEASE

    def tick(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            self.now += SECOND
            for replica in self.replicas:
                if not replica.stopped:
                    replica.heard = self.now
            self.check()

    def observe(self, replica: Replica) -> None:
        replica.version = self.version
        replica.seen = None if self.deleted else self.secret
        if replica.seen is not None:
            replica.known = replica.seen
            replica.bundle, replica.serving = replica.seen["ca.crt"], replica.seen["tls.crt"]

    def act(self, replica: Replica) -> None:
        living = [other for other in self.replicas if self.alive(other)]
        seen = replica.seen or {}
        bundle, leaf = seen.get("ca.crt", b""), seen.get("tls.crt", b"")
        carried = self.configured[-1][1] == bundle
        taken = carried and all(other.bundle == bundle for other in living)
        served = all(other.serving == leaf for other in living)
        confirmed = Confirmed(
            replica.bundle_since.elapsed(bundle, self.now, taken),
            replica.serving_since.elapsed(leaf, self.now, served),
        )
        taken_step = step(replica.seen, self.now, confirmed, requested=self.requested, known=replica.known)
        if replica.version == self.version and (taken_step.data is not None or taken_step.answered):
            if taken_step.data is not None:
                self.version, self.secret, self.deleted = self.version + 1, taken_step.data, False
            if taken_step.answered:
                self.requested = ""

    def inject(self) -> None:
        if not self.deleted and self.configured[-1][1] != self.secret["ca.crt"]:
            self.configured.append((self.now, self.secret["ca.crt"]))

    def delete(self) -> None:
        self.deleted, self.version = True, self.version + 1

    def alike(self) -> bool:
        """Whether no step is left, and all replicas have the same content."""
        end = material.read(self.secret)
        settled = not self.deleted and not self.requested and len(end.bundle) == 1 and end.next is None
        taken = {(replica.bundle, replica.serving) for replica in self.replicas}
        return settled and taken == {(self.configured[-1][1], self.secret["tls.crt"])}

    def check(self) -> None:
        """Every bundle that an API server may still use verifies every leaf that a live replica may serve."""
        ends = [when for when, _ in self.configured[1:]] + [self.now + DAY]
        held = [bundle for (_, bundle), end in zip(self.configured, ends, strict=True) if end > self.now - RULES.settle]
        for replica in self.replicas:
            if self.alive(replica):
                assert all(accepts(bundle, replica.serving) for bundle in held)


ACTIONS = st.one_of(
    st.tuples(st.just("tick"), st.integers(1, 30)),
    st.tuples(st.just("observe"), st.integers(0, 2)),
    st.tuples(st.just("act"), st.integers(0, 2)),
    st.tuples(st.just("inject"), st.just(0)),
    st.tuples(st.just("stop"), st.integers(0, 2)),
    st.tuples(st.just("ask"), st.sampled_from(["ca", "leaf"])),
    st.tuples(st.just("delete"), st.just(0)),
)


def perform(fleet: Fleet, action: str, argument: int | str) -> None:
    if action == "tick":
        fleet.tick(float(argument))
    elif action == "ask":
        fleet.requested = str(argument)
    elif action == "inject":
        fleet.inject()
    elif action == "delete":
        fleet.delete()
    else:
        replica = fleet.replicas[int(argument)]
        if action == "stop":
            replica.stopped = not replica.stopped
            if not replica.stopped:  # its watch catches up before its Lease is renewed
                fleet.observe(replica)
        elif not replica.stopped:
            (fleet.observe if action == "observe" else fleet.act)(replica)


@given(st.lists(ACTIONS, min_size=1, max_size=60))
@settings(max_examples=50, deadline=None)
def test_in_every_order_of_steps_served_leaves_are_trusted_and_replicas_converge(
    actions: list[tuple[str, int | str]],
) -> None:
    fleet = Fleet(3)
    for action, argument in actions:
        perform(fleet, action, argument)
        fleet.check()
    for replica in fleet.replicas:
        replica.stopped = False
        fleet.observe(replica)
    for _ in range(60):
        if fleet.alike():
            break
        for replica in fleet.replicas:
            fleet.act(replica)
            fleet.inject()
            fleet.observe(replica)
        fleet.tick(10)
    assert fleet.alike()


def test_the_model_fails_for_a_ca_that_signs_too_early() -> None:
    fleet = Fleet(2)
    joined = content(step(fleet.secret, requested="ca"))
    fleet.secret, fleet.version = content(step(joined, confirmed=LONG)), 2
    fleet.observe(fleet.replicas[0])
    with pytest.raises(AssertionError):
        fleet.check()


def test_a_host_that_no_certificate_can_name_is_an_error() -> None:
    with pytest.raises(ValueError, match="neither an IP address nor a DNS name"):
        rotation.advance(None, now=NOW, rules=Rules(hosts=("my host",)), confirmed=NOBODY)


def test_a_chain_through_an_intermediate_is_followed() -> None:
    root = material.make_authority("root", now=NOW, lifetime=DAY)
    other = material.make_authority("other", now=NOW, lifetime=DAY)
    pair = material.issue_serving(root, "leaf", ["a"], now=NOW, lifetime=DAY)
    chain = material.certificates(pair.certificate_pem + other.certificate_pem, "tls.crt")
    assert material.anchor(chain, [other.certificate, root.certificate]) == root.certificate
    assert material.anchor(chain, [other.certificate]) is None


def test_a_chain_through_two_intermediates_in_any_order_is_followed() -> None:
    root = material.make_authority("root", now=NOW, lifetime=DAY)
    signers, pems = [root], []
    for name in ("upper", "lower", "leaf"):
        pair = material.issue_serving(signers[-1], name, ["a"], now=NOW, lifetime=DAY)
        key = serialization.load_pem_private_key(pair.key_pem, password=None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        signers.append(material.Authority(x509.load_pem_x509_certificate(pair.certificate_pem), key))
        pems.append(pair.certificate_pem)
    upper, lower, leaf = pems
    for chain in (leaf + lower + upper, leaf + upper + lower):
        assert material.anchor(material.certificates(chain, "tls.crt"), [root.certificate]) == root.certificate
    for broken in (leaf, leaf + upper, leaf + lower):
        assert material.anchor(material.certificates(broken, "tls.crt"), [root.certificate]) is None
