"""The policies of a server: loads the folder of policy files, follows it, and brings what policies ask of a cluster.

Imported only with policies: the schema and the engine take 20 MiB.
"""

import asyncio
import contextlib
import datetime as dt
import logging
from pathlib import Path

from cluster.look_ups import from_thread
from policies.applying.requests import FindClaims, ReviewAccess, find_nothing, review_nothing
from policies.files.api_types import Served, nothing_served
from policies.files.folders import FolderKeeper, KeepError, KeptSet, PolicyError, PolicyKeeper, unpack
from policies.files.store import PolicyStore, StoreOptions
from policies.schema.followable import CORE
from runtime.api_server import TimedApiServer
from runtime.startup import StartupError
from webhook.cluster.for_policies import AccessReviews, ClaimContents, ConfigMapKeeper
from webhook.cluster.policy_entry import PolicyEntry
from webhook.edge.endpoints import Check
from webhook.edge.metrics import Metrics
from webhook.reviews.chain import PolicyParts
from webhook.reviews.policy_metrics import PolicyMetrics
from webhook.server.certificates import Certificates, own_namespace, running
from webhook.server.settings import WebhookSettings

log = logging.getLogger(__name__)


async def opened(
    folder: Path,
    settings: WebhookSettings,
    api_server: TimedApiServer | None,
    metrics: Metrics,
    checks: dict[str, Check],
    stack: contextlib.AsyncExitStack,
) -> PolicyParts:
    """Load the policies of a folder, follow it until the stack closes, and add the readiness checks.

    Raises:
        StartupError: the policies cannot be used.
    """
    find: FindClaims = find_nothing
    review: ReviewAccess = review_nothing
    served: Served = nothing_served
    keeper: PolicyKeeper | None = None if settings.policies_state is None else FolderKeeper(settings.policies_state)
    access = None if api_server is None else AccessReviews(api_server)
    if api_server is not None and access is not None:
        find, review, served = ClaimContents(api_server).find, access.ask, from_thread(api_server)
        if keeper is None and settings.policies_state_config_map:
            keeper = ConfigMapKeeper(api_server, own_namespace(settings), settings.policies_state_config_map)
    try:
        kept = None if keeper is None else await _kept(keeper)
        options = StoreOptions(_now, settings.policy_reload == "together", keeper=keeper, served=served)
        store = await asyncio.to_thread(PolicyStore.open, folder, options, kept)
    except PolicyError as error:
        raise StartupError(f"The policies (--policies) cannot be used:\n{error}") from error
    policy_metrics = PolicyMetrics(store)
    metrics.registry.register(policy_metrics)
    await running(stack, {"policies": store.watch})
    if access is not None:
        checks["policy permissions"] = access.check
        await running(stack, {"policy permissions": lambda: access.watch(lambda: store.current.asks)})
    checks["policies"] = store.check
    return PolicyParts(store, policy_metrics, find, _now, review)


async def follow(
    settings: WebhookSettings,
    store: PolicyStore,
    api_server: TimedApiServer,
    certificates: Certificates,
    metrics: Metrics,
    stack: contextlib.AsyncExitStack,
) -> Check:
    """Keep the rules of the entry for policies until the stack closes. Returns its readiness check."""
    if certificates.leases is None:
        raise AssertionError("with a cluster, `keeping` makes the Leases")
    groups = ["" if group == CORE else group for group in settings.follow_group]
    entry = PolicyEntry(api_server, settings.webhook_configuration, store, certificates.leases, groups=groups)
    await running(stack, {"entry for policies": entry.cache.run, "rules of policies": entry.run})
    metrics.problem("policy-rules", lambda: entry.check()[1])
    return entry.check


async def _kept(keeper: PolicyKeeper) -> KeptSet | None:
    """The set that an earlier run has kept; None if there is none that can be read."""
    try:
        content = await keeper.read()
        return None if content is None else unpack(content)
    except KeepError as error:
        log.warning("the policies of an earlier run cannot be read: %s", error)
        return None


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)
