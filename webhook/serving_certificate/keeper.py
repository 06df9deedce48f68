"""Manages the certificates in a Secret. Every replica does all three parts:

    Follower   loads the certificate when the Secret changes
    Keeper     writes the next step of `certs.rotation` into the Secret
    Injector   writes the bundle into `caBundle` of both webhook configurations

There is no leader: the API server refuses a write that was decided on an older Secret (`resourceVersion`), and no
replica waits for another one that has died.

The Secret is watched, read and written through the API, not through a volume: a mounted Secret is updated after a
minute or more, at a different time on each node. A deleted Secret is made again, by a server-side apply: RBAC knows the
name of what an apply creates, and not that of a POST. So the right to create is limited to this one Secret: who may
create others may create the token of any ServiceAccount of the namespace.
"""

import asyncio
import base64
import binascii
import dataclasses
import datetime as dt
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import orjson

from certs import material, rotation
from certs.material import KEYS
from cluster.kinds.replicas import ReplicaStatus
from cluster.reflector import Projection, Reflector
from cluster.resources import SECRETS
from neuron.names import MANAGER
from runtime.api_server import (
    APPLY,
    CONFLICT,
    FORBIDDEN,
    MERGE_PATCH,
    NOT_FOUND,
    ApiAnswerError,
    ApiServer,
    ApiServerError,
    Collection,
    StatusError,
    explain,
    rule_text,
)
from runtime.retries import REQUEST_TIMEOUT, RetryProblem
from webhook.cluster.leases import Leases
from webhook.serving_certificate.ca_bundles import CABundles
from webhook.serving_certificate.live import LiveCertificate, UnservableError

log = logging.getLogger(__name__)

Now = Callable[[], dt.datetime]

_RETRY: Final = 1.0
_BETWEEN_WRITES: Final = 1.0
"""Seconds: replicas with different settings revert each other's writes, and must not do so at full speed."""


ANNOTATION_ROTATE: Final = "neuron.aws.com/rotate"
"""Annotation of the Secret: `ca` or `leaf` requests a rotation; removed when the rotation has begun."""

_OWNERS: Final = {"cert-manager.io/": "cert-manager", "controller.cert-manager.io/": "cert-manager"}
"""Prefixes of annotations and labels -> the controller that sets them on Secrets it manages."""


@dataclasses.dataclass(frozen=True, slots=True)
class SecretFacts:
    """The cached fields of a Secret.

    Attributes:
        version: its `resourceVersion`.
        data: our keys, decoded from base64; invalid values are left out.
        requested: the rotation that the annotation requests; empty: none.
        keeper: another controller that writes this Secret; empty: none known.
    """

    version: str
    data: Mapping[str, bytes] = dataclasses.field(repr=False)
    requested: str
    keeper: str


def project_secret(item: Mapping[str, Any]) -> SecretFacts:
    """The fields of a Secret that are cached."""
    metadata = item["metadata"]
    annotations, labels = metadata.get("annotations") or {}, metadata.get("labels") or {}
    marks = (*annotations, *labels)
    keeper = next((who for mark in marks for prefix, who in _OWNERS.items() if mark.startswith(prefix)), "")
    data = {}
    for key in KEYS:
        try:
            data[key] = base64.b64decode((item.get("data") or {})[key], validate=True)
        except (KeyError, binascii.Error):
            continue
    requested = annotations.get(ANNOTATION_ROTATE, "")
    return SecretFacts(metadata["resourceVersion"], data, requested, keeper)


class ManagedSecret:
    """Access to the Secret.

    Attributes:
        cache: the caller runs it; `facts` reads it.
    """

    def __init__(self, server: ApiServer, namespace: str, name: str) -> None:
        self.namespace = namespace
        self.name = name
        self.cache = Reflector(server, Collection(SECRETS, namespace, name), Projection(project_secret))
        self._server = server

    @property
    def missing(self) -> str:
        """The problem if it does not exist and this account may not make it, and its fix."""
        rule = rule_text("", (SECRETS.plural,), ("create",), (self.name,))
        return (
            f"Secret {self.namespace}/{self.name} does not exist, and the webhook may not make it: create it without "
            f"data (kubectl create secret generic {self.name} --namespace={self.namespace}), and give the webhook a "
            f"Role with this rule, as helm upgrade does: {rule}"
        )

    @property
    def facts(self) -> SecretFacts | None:
        """The Secret in the watch cache; None if it does not exist."""
        return self.cache.get(self.namespace, self.name)

    async def read(self) -> SecretFacts | None:
        """Get the Secret from the API server; None if it does not exist.

        Raises:
            ApiServerError: it cannot be read.
        """
        try:
            body = await self._server.request("GET", SECRETS.path(self.namespace, self.name), timeout=REQUEST_TIMEOUT)
        except StatusError as error:
            if error.code == NOT_FOUND:
                return None
            raise
        try:
            return project_secret(orjson.loads(body))
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise ApiAnswerError("the answer is no Secret") from error

    async def make(self) -> bool:
        """Make the Secret without content, as the chart has it; False: this account may not. One that exists stays.

        Raises:
            ApiServerError: it cannot be made.
        """
        path, query = SECRETS.path(self.namespace, self.name), {"fieldManager": MANAGER}
        body = {
            "apiVersion": SECRETS.version,
            "kind": "Secret",
            "metadata": {"name": self.name, "namespace": self.namespace},
        }
        try:
            await self._server.request(
                "PATCH", path, timeout=REQUEST_TIMEOUT, query=query, body=body, content_type=APPLY
            )
        except StatusError as error:
            if error.code == FORBIDDEN and error.missing_right:
                return False
            raise
        return True

    async def write(self, before: SecretFacts, data: Mapping[str, bytes] | None, *, answered: bool) -> bool:
        """Write new content, or only remove the request for a rotation; False: another replica was first.

        Args:
            before: the content that the decision was made on.
            data: the whole content; None: unchanged.
            answered: remove the request for a rotation.

        Raises:
            ApiServerError: it cannot be written.
        """
        metadata: dict[str, object] = {"resourceVersion": before.version}
        if answered:
            metadata["annotations"] = {ANNOTATION_ROTATE: None}
        body: dict[str, object] = {"metadata": metadata}
        if data is not None:
            body["data"] = {key: base64.b64encode(data[key]).decode() if key in data else None for key in KEYS}
        path = SECRETS.path(self.namespace, self.name)
        try:
            await self._server.request("PATCH", path, timeout=REQUEST_TIMEOUT, body=body, content_type=MERGE_PATCH)
        except StatusError as error:
            gone = error.code == NOT_FOUND and error.details.get("kind") != "namespaces"
            if error.code == CONFLICT or gone:
                return False
            raise
        return True

    def explain(self, error: ApiServerError, verb: str) -> str:
        """The problem and its fix, for an operator."""
        return explain(error, verb, SECRETS, self.namespace, self.name)


@dataclasses.dataclass(frozen=True, slots=True)
class LoadedDigests:
    """Digests of the content that a replica has loaded from the Secret.

    Attributes:
        bundle: hex SHA-256 of the CA bundle's PEM; empty if none was loaded.
        serving: hex SHA-256 of the serving certificate's DER; empty if none is served.
    """

    bundle: str = ""
    serving: str = ""


class Follower:
    """Loads the certificate of the Secret whenever it changes.

    Attributes:
        bundle: PEM of the CAs that clients must trust; empty until a Secret was loaded.
        known: the last content that could be served.
        loaded: digests of the loaded content.
        refused: why neither its leaf can be served nor its bundle verifies the served leaf; empty if one of them works.
        ca_not_after: end of the current CA's validity; None until a Secret was loaded.
        served: set once a certificate is served.
    """

    def __init__(self, secret: ManagedSecret, live: LiveCertificate, now: Now) -> None:
        """Load the content of `secret` into `live`; `now` returns the time by the API server's clock."""
        self.bundle = b""
        self.known: Mapping[str, bytes] | None = None
        self.loaded = LoadedDigests()
        self._problem = RetryProblem(log)
        self.refused = ""
        self.ca_not_after: dt.datetime | None = None
        self.served = asyncio.Event()
        self._live = live
        self._now = now
        self._name = f"Secret {secret.namespace}/{secret.name}"
        self._callbacks: list[Callable[[], None]] = []
        secret.cache.on_change(lambda _key, _before, after: self.follow(after))

    @property
    def problem(self) -> str:
        """Why the content of the Secret is not served; empty if it is."""
        return self._problem.text

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call `callback` after each change of the Secret."""
        self._callbacks.append(callback)

    def follow(self, facts: SecretFacts | None) -> None:
        """Load the content; unusable parts are logged and change nothing."""
        self._problem.set(self._take(facts))
        for callback in self._callbacks:
            callback()

    def trusted(self, facts: SecretFacts | None) -> bytes:
        """The bundle of newer content, if it verifies the certificate that is then served; else the current bundle."""
        try:
            held = material.read(facts.data if facts else {})
        except material.UnusableError:
            return self.bundle
        pem = held.bundle_pem
        if self._live.accepted_by(pem):
            return pem
        usable = facts is not None and held.leaf is not None and rotation.serves(facts.data, self._now())
        return pem if usable and held.leaf is not None and self._live.can_load(held.leaf.pair) else self.bundle

    def _take(self, facts: SecretFacts | None) -> str:
        self.refused = ""
        if facts is None:
            return f"{self._name} was deleted" if self.known is not None else f"{self._name} does not exist"
        try:
            held = material.read(facts.data)
        except material.UnusableError as why:
            return f"{self._name} cannot be used: {why}"
        problem = ""
        if held.leaf is None or not rotation.serves(facts.data, self._now()):
            fault = held.leaf_fault or "its serving certificate is not valid now, or none of its CAs signed it"
            problem = f"{self._name} holds nothing to serve: {fault}"
        else:
            try:
                self._live.load(held.leaf.pair)
                self.known = facts.data
                self.served.set()
            except UnservableError as error:
                problem = f"the certificate in {self._name} is not served: {error}"
        # The bundle goes to the API servers, which must still accept the served certificate if the new leaf failed.
        if not self._live.accepted_by(held.bundle_pem):
            self.refused = problem
            return problem
        self.bundle, self.ca_not_after = held.bundle_pem, held.current.not_valid_after_utc
        self.loaded = LoadedDigests(material.bundle_digest(self.bundle), self._live.digest)
        return problem


class Injector:
    """Reconciles `caBundle`."""

    def __init__(self, bundles: CABundles, bundle: Callable[[], bytes], fresh: Callable[[], Awaitable[bytes]]) -> None:
        """`bundle` returns the bundle from memory; `fresh` reads it again before a write."""
        self._bundles = bundles
        self._bundle = bundle
        self._fresh = fresh
        self._wake = asyncio.Event()
        bundles.on_change(self._wake.set)

    def wake(self) -> None:
        """Reconcile now: the bundle may have changed."""
        self._wake.set()

    async def run(self) -> None:
        """Reconcile on every change, until it is cancelled."""
        while True:
            self._wake.clear()
            bundle = self._bundle()
            pause = await self._bundles.repair(bundle, self._fresh) if bundle else 0.0
            await _wait(self._wake, pause or None)


class Confirmations:
    """Measures since when all replicas and webhook configurations have the content of the Secret."""

    def __init__(self, secret: str, bundles: CABundles, leases: Leases) -> None:
        """Read webhook configurations and Leases; `secret` is the Secret's name."""
        self._secret = secret
        self._bundles = bundles
        self._leases = leases
        self._bundle_since = _Since()
        self._serving_since = _Since()

    def announce(self) -> None:
        """Write our own Lease now: this replica has loaded new content."""
        self._leases.announce()

    def of(self, held: material.Material) -> rotation.Confirmed:
        """Durations for exactly this content."""
        bundle, now = held.bundle_pem, time.monotonic()
        digest = material.bundle_digest(bundle)
        taken = self._agree(lambda report: report.bundle == digest) and self._bundles.carry(bundle)
        serving = material.certificate_digest(held.leaf.certificate) if held.leaf else ""
        served = self._agree(lambda report: report.serving == serving)
        return rotation.Confirmed(
            self._bundle_since.elapsed(digest, now, holds=taken),
            self._serving_since.elapsed(serving, now, holds=served),
        )

    def _agree(self, right: Callable[[ReplicaStatus], bool]) -> bool:
        # A replica with another Secret or none, such as one on a laptop, never loads ours.
        return self._leases.agree(lambda report: report.secret != self._secret or right(report))


class SecretKeeper:
    """Writes the Secret, one step of `certs.rotation` after the other.

    Attributes:
        waiting: what a rotation waits for; empty: no rotation, or it does not wait.
        reported: the digests in our Lease.
    """

    def __init__(
        self, secret: ManagedSecret, follower: Follower, rules: rotation.Rules, now: Now, confirmations: Confirmations
    ) -> None:
        """Prepare; `run` writes.

        Args:
            rules: hosts, lifetimes and waits of the certificates.
            now: the time by the API server's clock.
            confirmations: since when the replicas have the content of the Secret.
        """
        self._problem = RetryProblem(log)
        self.waiting = ""
        self.reported = LoadedDigests()
        self.secret = secret.name
        self._secret = secret
        self._follower = follower
        self._rules = rules
        self._now = now
        self._confirmations = confirmations
        # Short enough to notice the end of the shortest wait.
        self._interval = min(5.0, max(0.1, rules.settle.total_seconds() / 4))
        self._written = float("-inf")
        self._wake = asyncio.Event()
        follower.on_change(self._wake.set)

    @property
    def problem(self) -> str:
        """Why the Secret cannot be written; empty if it can."""
        return self._problem.text

    async def run(self) -> None:
        """Take one step after the other, until it is cancelled."""
        await self._secret.cache.settled.wait()
        while True:
            self._wake.clear()
            pause = self._interval
            try:
                if self._follower.loaded != self.reported:
                    self.reported = self._follower.loaded
                    self._confirmations.announce()
                self._problem.set(await self._step())
            except ApiServerError as error:
                self._problem.set(self._secret.explain(error, "write"))
                pause = _RETRY
            except ValueError as error:
                self._problem.set(f"no certificate can be made: {error}")
            rest = self._rest()
            await _wait(self._wake, min(pause, rest) if rest > 0 else pause)

    async def fresh_bundle(self) -> bytes:
        """Read the bundle from the Secret; the current one if the Secret has no usable bundle.

        Raises:
            ApiServerError: the Secret cannot be read.
        """
        return self._follower.trusted(await self._secret.read())

    async def _step(self) -> str:
        """Do the next step. Returns the problem that prevents it, or an empty string."""
        if not self._secret.cache.synced.is_set():
            return self._secret.cache.problem
        if self._rest() > 0:
            return ""
        facts = self._secret.facts
        if facts is None:
            if not await self._secret.make():
                return self._secret.missing
            self._written = time.monotonic()
            log.warning("Secret %s/%s did not exist; made again", self._secret.namespace, self._secret.name)
            return ""
        if facts.keeper:
            return (
                f"Secret {self._secret.namespace}/{self._secret.name} is managed by {facts.keeper}: mount it and set "
                "--tls-dir, or name another Secret with --tls-secret"
            )
        try:
            confirmed = self._confirmations.of(material.read(facts.data))
        except material.UnusableError:
            confirmed = rotation.Confirmed()
        step = rotation.advance(
            facts.data,
            now=self._now(),
            rules=self._rules,
            confirmed=confirmed,
            requested=facts.requested,
            known=self._follower.known,
            refused=self._follower.refused,
        )
        if step.data is None and not step.answered:
            self.waiting = step.reason
            return ""
        self.waiting = ""
        if await self._secret.write(facts, step.data, answered=step.answered):
            self._written = time.monotonic()
            done = log.info if step.data is not None else log.warning
            done("certificates: %s", step.reason, extra={"secret": f"{self._secret.namespace}/{self._secret.name}"})
        return ""

    def _rest(self) -> float:
        return self._written + _BETWEEN_WRITES - time.monotonic()


class _Since:
    """Measures for how long a condition has been true without interruption."""

    def __init__(self) -> None:
        self._what = ""
        self._begun: float | None = None

    def elapsed(self, what: str, now: float, *, holds: bool) -> dt.timedelta | None:
        if not holds:
            self._begun = None
            return None
        if self._begun is None or what != self._what:
            self._what, self._begun = what, now
        return dt.timedelta(seconds=now - self._begun)


async def _wait(event: asyncio.Event, seconds: float | None) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
