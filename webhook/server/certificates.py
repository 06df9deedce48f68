"""Composes the source of the serving certificate for one run, with its readiness check and metrics, and this replica's
report for its Lease.

`--standalone` creates files, `--tls-secret` manages a Secret, otherwise the files of `--tls-dir` are followed.
"""

import asyncio
import contextlib
import datetime as dt
import logging
import math
import os
import re
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import msgspec
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from certs import rotation
from cluster.kinds.replicas import LONGEST_CONDITION, ReplicaStatus, UnsentStatus
from runtime.api_server import TimedApiServer
from runtime.kubeconfigs import NAMESPACE_FILE
from runtime.startup import StartupError
from webhook.cluster.leases import LeaseIdentity, Leases
from webhook.edge.endpoints import Check
from webhook.edge.metrics import Metrics
from webhook.server.settings import WebhookSettings, duration
from webhook.serving_certificate.ca_bundles import CABundles, ServiceReference
from webhook.serving_certificate.keeper import (
    Confirmations,
    Follower,
    Injector,
    LoadedDigests,
    ManagedSecret,
    SecretKeeper,
)
from webhook.serving_certificate.live import CertificateFolder, LiveCertificate

if TYPE_CHECKING:
    # Policies take 20 MiB: loaded only where there are some.
    from policies.files.store import PolicyStore
    from policies.judging.coverage import Unsent

log = logging.getLogger(__name__)

POD_NAME: Final = "NEURON_DRA_POD_NAME"
POD_UID: Final = "NEURON_DRA_POD_UID"
"""Variables that the Deployment sets from the pod's metadata (downward API)."""

_DEFAULT_NAMESPACE: Final = "neuron-dra"
_SKEW_NOTED: Final = dt.timedelta(minutes=1)
"""Difference of the clocks above which it is reported."""
_RETIRE_AFTER: Final = 5
"""An old CA stays for this many settling times, so that a replica that was paused can catch up."""
_AFTER_A_DEFECT: Final = 5.0
"""Seconds before a task that raised an exception starts again."""
_WITH_DETAIL: Final = ("caches", "policy rules", "policy permissions")
"""Checks whose detail is reported although they pass: such a problem does not make the replica unready."""
_NO_TYPES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType({})
_UNSPECIFIED: Final = ("", "0.0.0.0", "::")  # noqa: S104 - nothing is bound here

Work = dict[str, Callable[[], Coroutine[object, object, None]]]


class Certificates:
    """The served certificate and the parts that keep it current.

    Attributes:
        now: the time; by the API server's clock if there is one, because API servers verify the certificate.
        describe: returns the other fields of this replica's report; set by `app`.
        folder: follows the files; None: no files.
        follower: follows the Secret; None: no Secret.
        keeper: writes the Secret; None: no Secret.
        bundles: the webhook configurations; None: they are not watched.
        leases: the Leases of all replicas; None: no cluster.
        skew: returns by how much the API server's clock is ahead of ours.
    """

    def __init__(self, live: LiveCertificate) -> None:
        self.live = live
        self.now: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC)
        self.describe: Callable[[], ReplicaStatus] = ReplicaStatus
        self.folder: CertificateFolder | None = None
        self.follower: Follower | None = None
        self.keeper: SecretKeeper | None = None
        self.bundles: CABundles | None = None
        self.leases: Leases | None = None
        self.skew: Callable[[], dt.timedelta] = lambda: dt.timedelta(0)
        self._matched = False

    def check(self) -> tuple[bool, str]:
        """Readiness check: API servers can verify our certificate.

        It never fails again for a configuration that loses our CA later: every replica repairs it, and if all replicas
        were unready meanwhile, none could answer after the repair.
        """
        fault = self.live.fault(self.now())
        details = [fault or f"valid until {self.live.not_after.isoformat()}" if self.live.not_after else fault]
        if self.bundles is not None:
            seen = all(cache.synced.is_set() for cache in self.bundles.caches)
            matches = seen and self.bundles.trust(self.live.accepted_by)
            self._matched = self._matched or matches
            if not seen:
                details.append("webhook configurations not seen yet")
            elif not matches:
                details.append("a webhook configuration does not carry its CA")
        else:
            self._matched = True
        return not fault and self._matched, "; ".join([*details, *self.problems()])

    def problems(self) -> list[str]:
        """Problems for the operator, one sentence each."""
        found = [*self._of_certificate(), *self._of_leases(), *self._of_bundles()]
        skew = self.skew()
        if abs(skew) > _SKEW_NOTED:
            side = "behind" if skew > dt.timedelta(0) else "ahead of"
            seconds = abs(round(skew.total_seconds()))
            found.append(f"this node's clock is {seconds} s {side} the API server's: synchronise the clocks")
        return [text for text in dict.fromkeys(found) if text]

    def _of_certificate(self) -> list[str]:
        parts = (self.folder, self.follower, self.keeper)
        return [part.problem for part in parts if part is not None and part.problem]

    def _of_leases(self) -> list[str]:
        found = () if self.leases is None else (self.leases.problem, self.leases.cache.problem)
        return [text for text in found if text]

    def _of_bundles(self) -> list[str]:
        return [] if self.bundles is None else self.bundles.problems()

    def report(self) -> ReplicaStatus:
        """The report in our Lease."""
        known = self.describe()
        loaded = self.keeper.reported if self.keeper else LoadedDigests("", self.live.digest)
        not_after = self.live.not_after.isoformat() if self.live.not_after else ""
        problems = tuple(dict.fromkeys((*known.problems, *self.problems())))
        secret = self.keeper.secret if self.keeper else ""
        return msgspec.structs.replace(
            known, secret=secret, bundle=loaded.bundle, serving=loaded.serving, not_after=not_after, problems=problems
        )

    def ca_not_after(self) -> float:
        """End of the CA's validity, seconds since the epoch; NaN if the CA is not known."""
        source = self.follower or self.folder
        end = source.ca_not_after if source else None
        return end.timestamp() if end else math.nan

    def show(self, metrics: Metrics) -> None:
        """Register the metrics of certificates."""
        metrics.gauge(
            "neuron_dra_serving_certificate_not_after_timestamp_seconds",
            "Expiry of the serving certificate, seconds since the epoch.",
            lambda: self.live.not_after.timestamp() if self.live.not_after else math.nan,
        )
        metrics.gauge(
            "neuron_dra_ca_not_after_timestamp_seconds", "Expiry of the CA, seconds since the epoch.", self.ca_not_after
        )
        metrics.gauge(
            "neuron_dra_clock_skew_seconds",
            "Seconds by which the API server's clock is ahead of this node's, by the Date of its answers.",
            lambda: self.skew().total_seconds(),
        )
        metrics.problem("certificate", self._of_certificate)
        metrics.problem("ca-bundle", self._of_bundles)
        metrics.problem("leases", self._of_leases)
        metrics.registry.register(_Counts(self))


class _Counts(Collector):
    def __init__(self, certificates: Certificates) -> None:
        self._certificates = certificates

    def collect(self) -> Iterator[Metric]:
        reloads = CounterMetricFamily(
            "neuron_dra_certificate_reloads",
            "Serving certificates loaded (success) or refused (failure).",
            labels=("result",),
        )
        for result, count in self._certificates.live.reloads.items():
            reloads.add_metric((result,), count)
        repairs = CounterMetricFamily(
            "neuron_dra_ca_bundle_repairs", "caBundle restored after it was changed or removed by others."
        )
        bundles = self._certificates.bundles
        repairs.add_metric((), bundles.repairs if bundles else 0)
        yield from (reloads, repairs)


@contextlib.asynccontextmanager
async def keeping(
    settings: WebhookSettings, certificates: Certificates, server: TimedApiServer | None
) -> AsyncIterator[None]:
    """Keep the certificate current until the context ends.

    Args:
        certificates: the first certificate is already loaded, except with a Secret.
        server: the API server; None: no cluster.

    Raises:
        StartupError: on entering: there is no certificate to serve.
    """
    folder = certificates.folder
    async with contextlib.AsyncExitStack() as stack:
        if folder is not None:
            await running(stack, {"certificate files": folder.watch})
        if server is None:
            yield
            return
        certificates.now, certificates.skew = server.now, lambda: server.skew
        name = os.environ.get(POD_NAME) or re.sub(r"[^a-z0-9-]+", "-", socket.gethostname().lower()).strip("-")
        uid = os.environ.get(POD_UID)
        owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid} if uid else None
        identity = LeaseIdentity(own_namespace(settings), name, owner)
        leases = certificates.leases = Leases(server, identity, certificates.report)
        if settings.tls_secret:
            await _managed(settings, certificates, server, leases, stack)
        elif folder is not None and settings.inject_ca:
            if not folder.bundle:
                raise StartupError(
                    f"--inject-ca needs a CA to inject, and {settings.tls_dir} has no usable ca.crt: add it to the "
                    "Secret that is mounted there, or drop --inject-ca."
                )
            bundles = certificates.bundles = _bundles(settings, server)
            injector = Injector(bundles, lambda: folder.bundle, folder.fresh_bundle)
            folder.on_change(injector.wake)
            watches: Work = {str(cache.resource): cache.run for cache in bundles.caches}
            await running(stack, {**watches, "caBundle": injector.run})
        stack.push_async_callback(leases.withdraw)
        await running(stack, {"leases": leases.cache.run, "our Lease": leases.run})
        yield


async def _managed(
    settings: WebhookSettings,
    certificates: Certificates,
    server: TimedApiServer,
    leases: Leases,
    stack: contextlib.AsyncExitStack,
) -> None:
    secret = ManagedSecret(server, own_namespace(settings), settings.tls_secret)
    follower = certificates.follower = Follower(secret, certificates.live, server.now)
    bundles = certificates.bundles = _bundles(settings, server)
    confirmations = Confirmations(secret.name, bundles, leases)
    keeper = certificates.keeper = SecretKeeper(secret, follower, rules(settings), server.now, confirmations)
    work: Work = {"certificate Secret": secret.cache.run, "certificates": keeper.run}
    work |= {str(cache.resource): cache.run for cache in bundles.caches}
    if settings.inject_ca is not False:
        injector = Injector(bundles, lambda: follower.bundle, keeper.fresh_bundle)
        follower.on_change(injector.wake)
        work["caBundle"] = injector.run
    await running(stack, work)
    try:
        async with asyncio.timeout(settings.sync_timeout):
            await follower.served.wait()
    except TimeoutError:
        problems = (secret.cache.problem, keeper.problem, follower.problem)
        absent = "no replica has made" if secret.cache.synced.is_set() else "no answer about"
        why = next(filter(None, problems), f"{absent} Secret {secret.namespace}/{secret.name}")
        raise StartupError(f"There is no certificate to serve after {settings.sync_timeout:g} s: {why}.") from None


def _bundles(settings: WebhookSettings, server: TimedApiServer) -> CABundles:
    service = ServiceReference(own_namespace(settings), settings.service)
    writes = settings.inject_ca is not False
    return CABundles(server, settings.webhook_configuration, service, writes=writes)


def own_namespace(settings: WebhookSettings) -> str:
    """The namespace of this process: the setting, else that of the service account, else the default."""
    if settings.namespace:
        return settings.namespace
    with contextlib.suppress(OSError):
        return NAMESPACE_FILE.read_text(encoding="utf-8").strip() or _DEFAULT_NAMESPACE
    return _DEFAULT_NAMESPACE


def rules(settings: WebhookSettings) -> rotation.Rules:
    """Hosts, lifetimes and waits of the certificates of a run."""
    service, namespace = settings.service, own_namespace(settings)
    suffixes = ("", f".{namespace}", f".{namespace}.svc", f".{namespace}.svc.cluster.local")
    more = [settings.host] if settings.host not in _UNSPECIFIED else []
    settle = duration(settings.ca_settle)
    return rotation.Rules(
        hosts=(*(service + suffix for suffix in suffixes), *more),
        ca_lifetime=duration(settings.ca_lifetime),
        leaf_lifetime=duration(settings.certificate_lifetime),
        settle=settle,
        retire=settle * _RETIRE_AFTER,
    )


async def running(stack: contextlib.AsyncExitStack, work: Work) -> None:
    """Run each function in a task, again after an exception, until the stack closes."""
    tasks = [asyncio.create_task(_unending(name, run), name=name) for name, run in work.items()]

    async def end() -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    stack.push_async_callback(end)


async def _unending(name: str, run: Callable[[], Coroutine[object, object, None]]) -> None:
    """Restart `run` after an exception, for example because certificates must be renewed in spite of a defect."""
    while True:
        try:
            await run()
        except Exception:
            log.exception("%s starts over after a defect", name)
        await asyncio.sleep(_AFTER_A_DEFECT)


def report(
    version: str,
    mode: str,
    checks: Mapping[str, Check],
    policies: "PolicyStore | None",
    types: Mapping[str, tuple[str, ...]] = _NO_TYPES,
) -> ReplicaStatus:
    """A report without `bundle`, `serving` and `not_after`, which `Certificates.report` adds.

    Args:
        mode: default mode of conversion.
        checks: readiness checks by name.
        policies: None: no policies.
        types: instance types that other replicas should know.
    """
    ready, problems = True, []
    for name, check in checks.items():
        passed, detail = check()
        ready = ready and passed
        if not passed:
            problems.append(f"{name}: {detail}" if detail else name)
        elif detail and name in _WITH_DETAIL:
            problems.append(detail)
    # Bounded, so that the whole report fits into an annotation.
    return ReplicaStatus(
        version=version,
        mode=mode,
        ready=ready,
        problems=tuple(problem[:500] for problem in problems[:10]),
        policies=policies.digest if policies else "",
        policies_problem=policies.problem[:500] if policies else "",
        policies_since=policies.older_since.isoformat(timespec="seconds") if policies and policies.older_since else "",
        unsent=tuple(map(_status, policies.unsent[:16])) if policies else (),
        templates=policies.templates[:64] if policies else (),
        types=dict(types),
    )


def _status(each: "Unsent") -> UnsentStatus:
    return UnsentStatus(
        policy=each.policy,
        group=each.group,
        resource=each.resource,
        operation=each.operation,
        condition=each.condition[:LONGEST_CONDITION],
    )
