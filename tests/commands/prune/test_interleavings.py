"""Admissions and prunes in every order that the protocol's assumptions allow: no admitted pod lacks its template.

The real `Pruner` and the real `KubeTemplates` run against an API server in memory. Hypothesis decides which step is
next: a request that is served, a watch event that arrives, a pod that is stored, a pod that is deleted, time that
passes. The assumptions, in ticks of time: an admission ends within LONGEST, a watch lags by at most LAG, and the grace
is more than both together.
"""

import asyncio
import dataclasses
import datetime as dt
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from cluster.kinds.claim_templates import project_template
from cluster.reflector import Projection, Reflector
from cluster.resources import RESOURCE_CLAIM_TEMPLATES
from commands.cluster.reader import ClusterReader
from commands.prune import PruneAction, Pruner, PruneReport, Reader
from runtime.api_server import ApiServer, Collection, StatusError
from tests.support.fake_api import _merged
from tests.support.generated import NOW, stored, template
from webhook.cluster.templates import KubeTemplates
from webhook.reviews.reviewer import TemplateUnavailableError

FINISHING = ("prune", "review", "watch", "store", "tick")
LONGEST, LAG = 3, 2
GRACE = LONGEST + LAG + 1
TICK = dt.timedelta(seconds=20)
WANTED = template(4)
REPLICAS = 2
CHOICES = (
    ("tick",) * 5 + ("prune",) * 4 + ("review",) * 2 + ("watch",) * 2 + ("delete",) * 2 + ("admit", "store", "start")
)
"""Next steps, weighted so that runs contain many concurrent operations."""


@dataclasses.dataclass
class Waiting:
    """A step for which a task waits."""

    proceed: asyncio.Future[None]
    kind: str
    due: int | None = None


class World(ApiServer):
    """An API server, and the time. A request is served when its step is taken."""

    def __init__(self) -> None:
        self.tick = 0
        self.templates: dict[str, dict[str, Any]] = {}
        self.pods: dict[str, str] = {}
        self.steps: list[Waiting] = []
        self.caches: list[Reflector[Any]] = []
        self.lagging: list[list[tuple[int, str, dict[str, Any]]]] = []
        self._versions = itertools.count(10)
        self._uids = itertools.count(1)

    def now(self) -> dt.datetime:
        return NOW + self.tick * TICK

    async def sleep(self, seconds: float) -> None:
        due = self.tick + round(seconds / TICK.total_seconds())
        while self.tick < due:
            await self.step(due)

    async def step(self, due: int | None = None) -> None:
        proceed = asyncio.get_running_loop().create_future()
        task = asyncio.current_task()
        assert task is not None
        kind = "prune" if task.get_name().startswith("prune") else "review"
        self.steps.append(Waiting(proceed, kind, due))
        await proceed

    async def request(
        self,
        method: str,
        path: str,
        *,
        timeout: float,  # noqa: ASYNC109, ARG002 - the port's
        query: Mapping[str, str] | None = None,  # noqa: ARG002
        body: Any = None,
        content_type: str = "",  # noqa: ARG002
        accept: str = "",  # noqa: ARG002
    ) -> bytes:
        if path == "/apis":
            return b'{"items": []}'
        if "selfsubjectaccessreviews" in path:
            return b'{"status": {"allowed": true}}'
        await self.step()  # on its way
        answer = self._serve(method, path, body)
        await self.step()  # on its way back
        if isinstance(answer, StatusError):
            raise answer
        return orjson.dumps(answer)

    def stream(self, path: str, *, query: Mapping[str, str], stall: float) -> Any:  # noqa: ARG002
        raise AssertionError("watch events are taken from the queues, not from a stream")

    def _serve(self, method: str, path: str, body: Any) -> Any:
        kind, name = ("pods", "") if path.endswith("/pods") else (path, path.rpartition("/")[2])
        if kind == "pods":
            return {"metadata": {}, "items": [_pod(*each) for each in self.pods.items()]}
        if method == "GET" and name == RESOURCE_CLAIM_TEMPLATES.plural:
            return {"metadata": {}, "items": list(self.templates.values())}
        if method == "POST":
            name = body["metadata"]["name"]
            if name in self.templates:
                return StatusError(409, "exists", "AlreadyExists")
            return self.put({**stored(4, mark=""), "spec": body["spec"]}, name=name, uid=f"new-{next(self._uids)}")
        item = self.templates.get(name)
        if item is None:
            return StatusError(404, "no such template", "NotFound")
        metadata = item["metadata"]
        wanted = body["metadata"] if method == "PATCH" else body["preconditions"] if method == "DELETE" else {}
        if any(metadata[field] != wanted[field] for field in ("uid", "resourceVersion") if field in wanted):
            return StatusError(409, "modified", "Conflict")
        if method == "DELETE":
            del self.templates[name]
            self._tell("DELETED", item)
        elif method == "PATCH":
            patched = _merged(item, body)
            return item if patched == item else self.put(patched)
        return item

    def put(self, item: dict[str, Any], **metadata: Any) -> dict[str, Any]:
        fields = {**item["metadata"], **metadata, "resourceVersion": str(next(self._versions))}
        if metadata:
            fields["creationTimestamp"] = self.now().isoformat()
        made = {**item, "metadata": fields}
        known = fields["name"] in self.templates
        self.templates[fields["name"]] = made
        self._tell("MODIFIED" if known else "ADDED", made)
        return made

    def _tell(self, event: str, item: dict[str, Any]) -> None:
        for events in self.lagging:
            events.append((self.tick, event, item))

    def replica(self) -> KubeTemplates:
        cache = Reflector(self, Collection(RESOURCE_CLAIM_TEMPLATES), Projection(project_template))
        for item in self.templates.values():
            cache.observe("ADDED", item)
        self.caches.append(cache)
        self.lagging.append([])
        seconds = TICK.total_seconds()
        return KubeTemplates(
            self, cache, budget=1e6, pause=0, clock=lambda: self.tick * seconds, sleep=lambda _: self.step()
        )

    def deliver(self, replica: int) -> None:
        _, event, item = self.lagging[replica].pop(0)
        self.caches[replica].observe(event, item)


def _pod(name: str, referred: str) -> dict[str, Any]:
    claims = [{"name": "neuron", "resourceClaimTemplateName": referred}]
    return {"metadata": {"name": name, "namespace": "team"}, "spec": {"resourceClaims": claims}}


class Run:
    """One interleaving."""

    def __init__(self, grace: int) -> None:
        self.grace = grace * TICK
        self.world = World()
        self.world.templates[WANTED.name] = stored(4)
        self.stores = [self.world.replica() for _ in range(REPLICAS)]
        self.begun: dict[str, int] = {}
        self.answered: list[str] = []
        self.reports: list[PruneReport] = []
        self.orphans: list[str] = []
        self._names = itertools.count(1)
        self._pruning: set[asyncio.Task[None]] = set()
        self._reviews: set[asyncio.Task[None]] = set()

    async def go(self, choices: Sequence[tuple[str, int]]) -> None:
        try:
            for kind, number in choices:
                found = self.options()[kind]
                if found:
                    await self._take(found[number % len(found)])
            while found := [option for kind in FINISHING for option in self.options()[kind]]:
                if self.idle:
                    break
                await self._take(found[0])
        finally:
            for task in (*self._pruning, *self._reviews):
                task.cancel()
            await asyncio.gather(*self._pruning, *self._reviews, return_exceptions=True)
            for store in self.stores:
                await store.close()

    async def _take(self, option: Callable[[], object]) -> None:
        option()
        for _ in range(20):
            await asyncio.sleep(0)
        self.orphans += [name for name in self.world.pods if WANTED.name not in self.world.templates]

    @property
    def idle(self) -> bool:
        return not (self.world.steps or self.answered or any(self.world.lagging))

    def options(self) -> dict[str, list[Callable[[], object]]]:
        """The possible next steps."""
        world = self.world
        ready = [step for step in world.steps if step.due is None]
        few = len(self.begun) < 3
        may_start = sum(not task.done() for task in self._pruning) < 2
        return {
            "tick": [self._tick] if self._may_tick() else [],
            "prune": [functools.partial(self._proceed, step) for step in ready if step.kind == "prune"],
            "review": [functools.partial(self._proceed, step) for step in ready if step.kind == "review"],
            "watch": [functools.partial(world.deliver, n) for n, events in enumerate(world.lagging) if events],
            "store": [functools.partial(self._store, name) for name in self.answered],
            "delete": [functools.partial(world.pods.pop, name) for name in world.pods],
            "admit": [functools.partial(self._admit, store) for store in self.stores] if few else [],
            "start": [self._prune] if may_start else [],
        }

    def _may_tick(self) -> bool:
        """Whether time can advance within the assumed bounds of admissions and watches."""
        tick = self.world.tick
        admissions = all(tick - begun < LONGEST for begun in self.begun.values())
        watches = all(tick - when < LAG for events in self.world.lagging for when, _, _ in events[:1])
        return admissions and watches

    def _tick(self) -> None:
        self.world.tick += 1
        for step in [step for step in self.world.steps if step.due is not None]:
            self._proceed(step)

    def _proceed(self, step: Waiting) -> None:
        self.world.steps.remove(step)
        if not step.proceed.done():
            step.proceed.set_result(None)

    def _admit(self, store: KubeTemplates) -> None:
        name = f"pod-{next(self._names)}"
        self.begun[name] = self.world.tick
        self._reviews.add(asyncio.create_task(self._review(name, store)))

    async def _review(self, name: str, store: KubeTemplates) -> None:
        if not store.holds("team", WANTED):
            try:
                await store.ensure("team", WANTED)
            except TemplateUnavailableError:
                del self.begun[name]
                return
        self.answered.append(name)

    def _store(self, name: str) -> None:
        self.answered.remove(name)
        del self.begun[name]
        self.world.pods[name] = WANTED.name

    def _prune(self) -> None:
        self._pruning.add(asyncio.create_task(self._pruned(), name=f"prune {len(self._pruning)}"))

    async def _pruned(self) -> None:
        world = self.world
        pruner = Pruner(world, reader=Reader(ClusterReader(world, sleep=world.sleep)), now=world.now, sleep=world.sleep)
        self.reports.append(await pruner.prune(TICK, self.grace))

    @property
    def outcomes(self) -> set[PruneAction]:
        return {entry.outcome for report in self.reports for entry in report.entries}


def played(choices: Sequence[tuple[str, int]], grace: int = GRACE) -> Run:
    run = Run(grace)
    asyncio.run(run.go([("start", 0), *choices]))
    return run


STEPS = st.lists(st.tuples(st.sampled_from(CHOICES), st.integers(0, 7)), min_size=40, max_size=120)
QUICK = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    database=None,
    phases=[Phase.generate],  # a failure is told as it was found: making it smaller takes minutes
)


@given(STEPS)
@QUICK
def test_every_admitted_pod_has_its_template_in_every_interleaving(choices: list[tuple[str, int]]) -> None:
    run = played(choices)
    assert run.orphans == []
    assert PruneAction.RESTORED not in run.outcomes  # nothing had to be healed: it was excluded
    assert PruneAction.FAILED not in run.outcomes


@pytest.mark.parametrize("outcome", [PruneAction.REMOVED, PruneAction.KEPT])
def test_the_search_reaches_every_outcome(outcome: PruneAction) -> None:
    find(STEPS, lambda choices: outcome in played(choices).outcomes, settings=QUICK)


def test_the_search_finds_a_pod_without_its_template_if_there_is_no_grace_period() -> None:
    """Without the grace period, the property fails."""
    try:
        find(
            STEPS,
            lambda choices: bool(played(choices, 0).orphans),
            settings=settings(QUICK, max_examples=600),
        )
    except NoSuchExample:
        pytest.fail("the model is too tame: it never breaks without a grace")
