"""The policies of a server: loads the folder of policy files, and follows it."""

import asyncio
import contextlib
import datetime as dt
import logging
from collections.abc import AsyncIterator
from pathlib import Path

from prometheus_client.registry import CollectorRegistry

from policies.applying.requests import FindClaims, ReviewAccess, find_nothing, review_nothing
from policies.files.api_types import Served, nothing_served
from policies.files.folders import KeepError, KeptSet, PolicyError, PolicyKeeper, unpack
from policies.files.store import PolicyStore, StoreOptions
from runtime.startup import StartupError
from webhook.reviews.chain import PolicyParts
from webhook.reviews.policy_metrics import PolicyMetrics

log = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def following(
    folder: Path,
    registry: CollectorRegistry,
    find: FindClaims = find_nothing,
    review: ReviewAccess = review_nothing,
    *,
    together: bool = False,
    keeper: PolicyKeeper | None = None,
    served: Served = nothing_served,
) -> AsyncIterator[PolicyParts]:
    """Load the policies of a folder, and follow it until the context ends; `find` looks up claims by name,
    `review` permissions.

    With `together`, a changed folder is loaded completely or not at all. `keeper` has the last good set of an earlier
    run. `served` reads schemas, in the threads that load.

    Raises:
        StartupError: on entering: the policies cannot be used.
    """
    try:
        kept = None if keeper is None else await _kept(keeper)
        options = StoreOptions(_now, together, keeper=keeper, served=served)
        store = await asyncio.to_thread(PolicyStore.open, folder, options, kept)
    except PolicyError as error:
        raise StartupError(f"The policies (--policies) cannot be used:\n{error}") from error
    metrics = PolicyMetrics(store)
    registry.register(metrics)
    watching = asyncio.create_task(store.watch(), name="policies")
    try:
        yield PolicyParts(store, metrics, find, _now, review)
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching


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
