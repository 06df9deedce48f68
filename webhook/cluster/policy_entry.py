"""Keeps the `rules` of the entry for policies in step with the policies in force.

Every replica adds what its policies need. Rules are removed when all replicas have the same policies for a few seconds.
The entry has no `rules` in the chart, so that Helm and GitOps tools leave them.
"""

import asyncio
import dataclasses
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final

from cluster.reflector import Projection, Reflector
from cluster.resources import VALIDATING_CONFIGURATIONS
from policies.files.store import PolicyStore
from policies.judging.followed_rules import Rules, followed, next_rules
from policies.judging.rules import PolicySet
from policies.schema.followable import GROUPS
from runtime.api_server import CONFLICT, JSON_PATCH, NOT_FOUND, ApiServer, ApiServerError, StatusError, explain
from runtime.api_server import Collection as Objects
from runtime.retries import REQUEST_TIMEOUT, RetryProblem
from webhook.cluster.leases import Leases

log = logging.getLogger(__name__)

ENTRY: Final = "followed-policies.validate.neuron.aws.com"
"""Name of the webhook in the ValidatingWebhookConfiguration."""

_LOOK: Final = 1.0
"""Seconds between two looks at the policies and at the reports of the replicas, and between two writes."""
_SETTLE: Final = 5.0
"""Seconds for which all replicas must have the same policies before rules are removed: the report of a replica that has
loaded new policies may be on the way."""


@dataclasses.dataclass(frozen=True, slots=True)
class WebhookEntry:
    """The entry.

    Attributes:
        version: `resourceVersion` of the configuration.
        index: of the entry in `webhooks`; None: there is none.
    """

    version: str
    index: int | None
    rules: tuple[Mapping[str, object], ...]


def project_entry(item: Mapping[str, Any]) -> WebhookEntry:
    """The fields of a configuration that are cached."""
    version = item["metadata"]["resourceVersion"]
    for index, webhook in enumerate(item.get("webhooks") or ()):
        if webhook["name"] == ENTRY:
            return WebhookEntry(version, index, tuple(webhook.get("rules") or ()))
    return WebhookEntry(version, None, ())


class PolicyEntry:
    """Watches the configuration, and writes the rules of the entry.

    Attributes:
        cache: the caller runs it.
        writes: how often the rules were written.
    """

    def __init__(
        self,
        server: ApiServer,
        name: str,
        policies: PolicyStore,
        leases: Leases,
        *,
        groups: Collection[str] = GROUPS,
        settle: float = _SETTLE,
    ) -> None:
        """Prepare; `run` writes.

        Args:
            name: of the configuration.
            leases: report the policies of all replicas.
            groups: API groups whose requests are followed.
            settle: seconds for which all replicas must have the same policies before rules are removed.
        """
        self.cache = Reflector(server, Objects(VALIDATING_CONFIGURATIONS, name=name), Projection(project_entry))
        self.writes = 0
        self._server = server
        self._name = name
        self._policies = policies
        self._leases = leases
        self._groups = groups
        self._settle = settle
        self._problem = RetryProblem(log)
        self._left_out = RetryProblem(log)
        self._known: PolicySet | None = None
        self._needed: Rules = []
        self._agreed_since: float | None = None

    def check(self) -> tuple[bool, str]:
        """For `/readyz`: always ready, because other entries work; the detail has the problems."""
        problems = [self.cache.problem, self._problem.text, self._left_out.text]
        return True, "; ".join(text for text in problems if text)

    async def run(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Reconcile until it is cancelled."""
        while True:
            current = self._policies.current
            if current is not self._known:
                self._known = current
                self._needed, left_out = followed(current.validating, self._groups)
                self._left_out.set(left_out)
                self._agreed_since = None
                self._leases.announce()
            if not self._leases.agree(lambda report: report.policies == self._policies.current.digest):
                self._agreed_since = None
            elif self._agreed_since is None:
                self._agreed_since = time.monotonic()
            self._problem.set(await self._step())
            await sleep(_LOOK)

    async def _step(self) -> str:
        """Write the rules if they are wrong. Returns the problem, or an empty string."""
        if not self.cache.synced.is_set():
            return ""
        entry = self.cache.get("", self._name)
        if entry is None or entry.index is None:
            what = f"webhook {ENTRY}" if entry else "object"
            return (
                f"{VALIDATING_CONFIGURATIONS.plural} {self._name}: there is no {what}, so requests that only policies"
                " need are not sent: set the chart's validation.followPolicies, or drop --follow-policies"
            )
        since = self._agreed_since
        removable = since is not None and time.monotonic() - since >= self._settle
        rules = next_rules(entry.rules, self._needed, removable=removable)
        if rules is None:
            return ""
        try:
            await self._write(entry, rules)
        except ApiServerError as error:
            return explain(error, "patch", VALIDATING_CONFIGURATIONS, name=self._name)
        return ""

    async def _write(self, entry: WebhookEntry, rules: Rules) -> None:
        operations: list[dict[str, object]] = [
            {"op": "replace", "path": "/metadata/resourceVersion", "value": entry.version},
            {"op": "add", "path": f"/webhooks/{entry.index}/rules", "value": rules},
        ]
        path = VALIDATING_CONFIGURATIONS.path(name=self._name)
        try:
            await self._server.request("PATCH", path, timeout=REQUEST_TIMEOUT, body=operations, content_type=JSON_PATCH)
        except StatusError as error:
            if error.code in (CONFLICT, NOT_FOUND):
                return  # another replica was first, or the configuration was deleted: the watch reports it
            raise
        self.writes += 1
        resources = sorted({resource for rule in rules for resource in rule["resources"]})
        extra = {"configuration": self._name, "webhook": ENTRY, "resources": resources}
        log.info("rules of the entry for policies written", extra=extra)
