"""Mark, wait, remove and heal, with an API server on a real socket."""

import asyncio
import contextlib
import datetime as dt
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from commands.cluster.reader import ClusterReader
from commands.prune import CannotPruneError, PruneAction, Pruner, PruneReport, Reader
from runtime import api_transport
from tests.support.fake_api import FakeApi, Handler, answer, hang_up, raw
from tests.support.generated import (
    MARK,
    NOW,
    PLURAL,
    access,
    connected,
    forbidden,
    pod_group,
    serve_groups,
    stored,
    template,
    templates_pod,
    workload,
)

DAY = dt.timedelta(days=1)
GRACE = dt.timedelta(minutes=4)
FOUR, EIGHT, TWO = (template(count).name for count in (4, 8, 2))
MANIFEST = Path(__file__).parents[3] / "deploy" / "manifests" / "prune.yaml"
REVIEWS = "selfsubjectaccessreviews"


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with FakeApi().serve() as api:
        api.fault("create", REVIEWS, access(), times=10_000)
        yield api


class Time:
    """A clock that `sleep` advances; tests may act during a sleep."""

    def __init__(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.now = NOW
        self.slept: list[float] = []
        self.meanwhile = meanwhile

    def __call__(self) -> dt.datetime:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += dt.timedelta(seconds=seconds)
        self.meanwhile()


@contextlib.asynccontextmanager
async def opened(api: FakeApi, time: Time, namespace: str = "", page_size: int = 500) -> AsyncIterator[Pruner]:
    async with connected(api) as connection:
        reader = Reader(ClusterReader(connection, page_size=page_size, sleep=time.sleep), namespace)
        yield Pruner(connection, namespace, reader=reader, now=time, sleep=time.sleep)


async def prune(
    api: FakeApi, meanwhile: Callable[[], object] = lambda: None, time: Time | None = None, **where: Any
) -> PruneReport:
    async with opened(api, time or Time(meanwhile), **where) as pruner:
        return await pruner.prune(DAY, GRACE)


def told(report: PruneReport) -> dict[str, tuple[str, str]]:
    return {entry.template.name: (entry.outcome.value, entry.detail) for entry in report.entries}


def names(api: FakeApi, namespace: str = "team") -> set[str]:
    return {name for where, name in api._objects.get(PLURAL, {}) if where == namespace}


def mark_of(api: FakeApi, name: str) -> str | None:
    mark: str | None = api.get(PLURAL, name, "team")["metadata"].get("annotations", {}).get(MARK)
    return mark


# --- the ordinary run -----------------------------------------------------------------------------------------


async def test_only_old_unused_templates_are_removed(api: FakeApi) -> None:
    api.put(PLURAL, stored(4))
    api.put(PLURAL, stored(8))
    api.put(PLURAL, stored(2, age=dt.timedelta(hours=23)))
    api.put(PLURAL, stored(1, manager="kubectl-client-side-apply"))
    api.put("pods", templates_pod("done", EIGHT, phase="Succeeded"))
    time = Time()
    report = await prune(api, time=time)
    assert told(report) == {FOUR: ("removed", "")}
    assert (report.generated, report.in_use, report.failed) == (3, 1, False)
    assert names(api) == {EIGHT, TWO, template(1).name}
    assert time.slept == [240]


async def test_a_candidate_is_marked_with_its_end_time_before_the_wait(api: FakeApi) -> None:
    api.put(PLURAL, stored(4))
    marks = []
    await prune(api, lambda: marks.append(mark_of(api, FOUR)))
    assert marks == ["2026-03-01T12:04:00.000000Z"]
    [call] = api.calls("patch", PLURAL)
    assert call.query == {"fieldManager": "neuron-dra"}


async def test_a_run_without_candidates_does_not_wait(api: FakeApi) -> None:
    api.put(PLURAL, stored(4))
    api.put("pods", templates_pod("p", FOUR))
    time = Time()
    report = await prune(api, time=time)
    assert (report.entries, report.generated, report.in_use) == ((), 1, 1)
    assert time.slept == []
    assert {(call.verb, call.plural == "apis") for call in api.seen} == {("list", False), ("get", True)}


async def test_an_unreadable_template_stays_and_does_not_keep_others(api: FakeApi) -> None:
    api.put(PLURAL, stored(4))
    listed = json.dumps(stored(8)).replace('"spec":', '"odd": ' + "[" * 3000 + "]" * 3000 + ', "spec":', 1)
    page = f'{{"metadata": {{}}, "items": [{listed}, {json.dumps(api.get(PLURAL, FOUR, "team"))}]}}'
    api.fault("list", PLURAL, raw(200, page.encode()), times=2)
    report = await prune(api)
    assert told(report) == {FOUR: ("removed", "")}
    assert report.generated == 1


async def test_a_plan_changes_nothing(api: FakeApi) -> None:
    api.put(PLURAL, stored(4))
    async with opened(api, Time()) as pruner:
        report = await pruner.plan(DAY)
    assert told(report) == {FOUR: ("candidate", "")}
    assert {(call.verb, call.plural == "apis") for call in api.seen} == {("list", False), ("get", True)}


async def test_only_the_given_namespace_is_pruned(api: FakeApi) -> None:
    api.put(PLURAL, stored(4))
    api.put(PLURAL, stored(4, "other"))
    report = await prune(api, namespace="team")
    assert [entry.template.namespace for entry in report.entries] == ["team"]
    assert names(api, "other") == {FOUR}
    assert {call.namespace for call in api.seen if call.plural not in (REVIEWS, "apis")} == {"team"}


async def test_a_pod_of_another_namespace_keeps_no_template(api: FakeApi) -> None:
    api.put(PLURAL, stored(4))
    api.put("pods", templates_pod("p", FOUR, namespace="other"))
    assert told(await prune(api)) == {FOUR: ("removed", "")}


async def test_big_clusters_are_read_page_by_page(api: FakeApi) -> None:
    for number in range(7):
        api.put(PLURAL, stored(4, f"ns-{number}"))
        api.put(
            "pods",
            templates_pod("p", FOUR, namespace=f"ns-{number}") if number else templates_pod("q", namespace="ns-0"),
        )
    report = await prune(api, page_size=3)
    assert [entry.template.namespace for entry in report.entries] == ["ns-0"]
    assert [call.query["limit"] for call in api.calls("list", "pods")] == ["3"] * 3
    assert len(api.calls("continue", "pods")) == 6
    assert not any("resourceVersion" in call.query for call in api.seen)


async def test_a_list_whose_token_expires_starts_again(api: FakeApi) -> None:
    for number in range(4):
        api.put(PLURAL, stored(4, f"ns-{number}"))
        api.put("pods", templates_pod("p", FOUR, namespace=f"ns-{number}"))
    api.fault("continue", "pods", answer(410, "Expired", "too old"))
    report = await prune(api, page_size=2)
    assert (report.entries, report.generated, report.in_use) == ((), 4, 4)


# --- a template that is needed again stays --------------------------------------------------------------------


async def test_a_pod_created_in_the_grace_period_keeps_its_template_without_the_mark(api: FakeApi) -> None:
    api.put(PLURAL, stored(4))
    report = await prune(
        api, lambda: (api.put("pods", templates_pod("late", FOUR)), api.put("pods", templates_pod("x", FOUR)))
    )
    assert told(report) == {FOUR: ("kept", "pod late and 1 more refer to it")}
    assert not report.failed
    assert mark_of(api, FOUR) is None


async def test_a_template_that_was_changed_in_the_grace_period_stays(api: FakeApi) -> None:
    api.put(PLURAL, stored(4))
    report = await prune(api, lambda: api.put(PLURAL, api.get(PLURAL, FOUR, "team")))
    assert told(report) == {FOUR: ("kept", "a webhook used it after it was marked")}
    assert names(api) == {FOUR}
    assert not report.failed


async def test_a_template_that_was_created_again_in_the_grace_period_stays(api: FakeApi) -> None:
    """As by another version of the webhook, with another resourceVersion."""
    api.put(PLURAL, stored(4))

    def again() -> None:
        version = api.get(PLURAL, FOUR, "team")["metadata"]["resourceVersion"]
        api.put(PLURAL, stored(4))
        api._objects[PLURAL]["team", FOUR]["metadata"]["resourceVersion"] = version

    assert told(await prune(api, again))[FOUR][0] == "kept"
    assert names(api) == {FOUR}


async def test_a_template_that_changed_before_it_was_marked_stays(api: FakeApi) -> None:
    api.put(PLURAL, stored(4))
    api.fault("patch", PLURAL, answer(409, "Conflict", "modified"))
    time = Time()
    assert told(await prune(api, time=time)) == {FOUR: ("kept", "another client changed it before it could be marked")}
    assert time.slept == []


@pytest.mark.parametrize("verb", ["patch", "delete"])
async def test_a_template_that_another_client_removed_is_no_failure(api: FakeApi, verb: str) -> None:
    api.put(PLURAL, stored(4))
    api.fault(verb, PLURAL, answer(404, "NotFound", "not found"))
    report = await prune(api)
    assert told(report) == {FOUR: ("gone", "")}
    assert not report.failed


@pytest.mark.parametrize(
    "how", [answer(409, "Conflict", "modified"), answer(404, "NotFound", "no")], ids=["409", "404"]
)
async def test_a_mark_that_another_client_removed_is_no_failure(api: FakeApi, how: Handler) -> None:
    api.put(PLURAL, stored(4))

    def meanwhile() -> None:
        api.put("pods", templates_pod("late", FOUR))
        api.fault("patch", PLURAL, how)

    assert not (await prune(api, meanwhile)).failed


# --- healing --------------------------------------------------------------------------------------------------


async def test_a_pod_that_appears_after_the_removal_gets_its_template_back(api: FakeApi) -> None:
    before = api.put(PLURAL, stored(4))
    listed = 0

    async def late(request: Any) -> Any:
        nonlocal listed
        listed += 1
        if listed == 3:
            api.put("pods", templates_pod("late", FOUR))
        return api._list(request, "pods")

    api.fault("list", "pods", late, times=9)
    report = await prune(api)
    assert told(report) == {FOUR: ("restored", "pod late refers to it")}
    assert not report.failed
    again = api.get(PLURAL, FOUR, "team")
    assert (again["spec"], again["metadata"]["labels"]) == (before["spec"], before["metadata"]["labels"])
    assert mark_of(api, FOUR) is None


async def test_the_cluster_role_allows_exactly_the_requests_that_are_sent(api: FakeApi) -> None:
    serve_groups(api)
    await test_a_pod_that_appears_after_the_removal_gets_its_template_back(api)
    asked = {(call.plural, call.verb) for call in api.seen if call.plural not in (REVIEWS, "apis")}
    (role,) = (item for item in yaml.safe_load_all(MANIFEST.read_text()) if item["kind"] == "ClusterRole")
    allowed = {(what, verb) for rule in role["rules"] for what in rule["resources"] for verb in rule["verbs"]}
    assert asked == allowed


async def test_a_template_is_restored_after_a_delete_without_an_answer(api: FakeApi) -> None:
    api.put(PLURAL, stored(4))
    api.put(PLURAL, stored(8))

    async def unheard(request: Any) -> Any:
        api.remove(PLURAL, FOUR, "team")
        api.put("pods", templates_pod("late", FOUR))
        return await hang_up(request)

    api.fault("delete", PLURAL, unheard)
    assert told(await prune(api)) == {FOUR: ("restored", "pod late refers to it"), EIGHT: ("removed", "")}
    assert names(api) == {FOUR}


async def test_no_template_is_restored_in_a_namespace_that_is_being_deleted(api: FakeApi) -> None:
    api.put(PLURAL, stored(4))
    ending = answer(403, "Forbidden", "it is being terminated", causes=[{"reason": "NamespaceTerminating"}])

    async def emptied(request: Any) -> Any:
        api.put("pods", templates_pod("late", FOUR))
        api.fault("create", PLURAL, ending)
        return await answer(404, "NotFound", "not found")(request)

    api.fault("delete", PLURAL, emptied)
    report = await prune(api)
    assert told(report) == {FOUR: ("gone", "")}
    assert not report.failed


async def test_a_template_that_the_webhook_created_again_is_not_restored(api: FakeApi) -> None:
    api.put(PLURAL, stored(4))
    lists = iter([[], [], [templates_pod("late", FOUR)]])

    async def listed(request: Any) -> Any:
        from aiohttp import web

        items = next(lists)
        if items:
            api.put(PLURAL, stored(4))
        return web.json_response({"metadata": {}, "items": items})

    api.fault("list", "pods", listed, times=3)
    report = await prune(api)
    assert told(report) == {FOUR: ("removed", "")}
    assert not report.failed
    assert names(api) == {FOUR}


async def test_a_template_that_cannot_be_restored_is_reported(api: FakeApi) -> None:
    api.put(PLURAL, stored(4))
    lists = iter([[], [], [templates_pod("late", FOUR)]])

    async def listed(request: Any) -> Any:
        from aiohttp import web

        return web.json_response({"metadata": {}, "items": next(lists)})

    api.fault("list", "pods", listed, times=3)
    api.fault("create", PLURAL, answer(403, "Forbidden", forbidden("create")))
    report = await prune(api)
    assert report.failed
    assert told(report) == {
        FOUR: (
            "failed",
            'pod late refers to it, and it could not be created again: "bob" lacks the rule '
            "- {apiGroups: [resource.k8s.io], resources: [resourceclaimtemplates], verbs: [create]}",
        )
    }


# --- a run that was killed ------------------------------------------------------------------------------------


async def test_the_next_run_continues_with_the_marks_of_a_killed_run(api: FakeApi) -> None:
    api.put(PLURAL, stored(4))
    asleep = asyncio.Event()

    class Stopped(Time):
        async def sleep(self, _: float) -> None:
            asleep.set()
            await asyncio.Event().wait()

    run = asyncio.create_task(prune(api, time=Stopped()))
    await asleep.wait()
    run.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await run
    assert mark_of(api, FOUR)
    tomorrow = Time()
    tomorrow.now += DAY
    assert told(await prune(api, time=tomorrow)) == {FOUR: ("removed", "")}
    assert tomorrow.slept == []
    assert len(api.calls("patch", PLURAL)) == 1


async def test_a_mark_that_is_too_recent_is_set_again_and_the_run_waits(api: FakeApi) -> None:
    api.put(PLURAL, stored(4, mark="2026-03-01T11:59:00Z"))
    time = Time()
    assert told(await prune(api, time=time)) == {FOUR: ("removed", "")}
    assert time.slept == [240]


async def test_the_run_that_marked_last_removes_if_two_run_at_a_time(api: FakeApi) -> None:
    api.put(PLURAL, stored(4))
    second: list[asyncio.Task[PruneReport]] = []
    go, gone = asyncio.Event(), asyncio.Event()

    class Slow(Time):
        async def sleep(self, seconds: float) -> None:
            self.now += dt.timedelta(seconds=seconds)
            go.set()
            await gone.wait()

    class First(Time):
        async def sleep(self, seconds: float) -> None:
            self.now += dt.timedelta(seconds=seconds)
            later = Slow()
            later.now += dt.timedelta(seconds=1)
            second.append(asyncio.create_task(prune(api, time=later)))
            await go.wait()

    first = await prune(api, time=First())
    gone.set()
    assert told(first)[FOUR][0] == "kept"
    assert told(await second[0])[FOUR][0] == "removed"


# --- what goes wrong ------------------------------------------------------------------------------------------


UNLISTED: dict[str, Any] = {
    f'Cannot list {PLURAL}.resource.k8s.io in all namespaces: "bob" lacks the rule '
    f"- {{apiGroups: [resource.k8s.io], resources: [{PLURAL}], verbs: [list]}}.": (
        PLURAL,
        answer(403, "Forbidden", f'{PLURAL}.resource.k8s.io is forbidden: User "bob" cannot list resource "x"'),
    ),
    'Cannot list pods in all namespaces: "bob" lacks the rule - {apiGroups: [""], resources: [pods], verbs: [list]}.': (
        "pods",
        answer(403, "Forbidden", 'pods is forbidden: User "bob" cannot list resource "pods"'),
    ),
    'Cannot list podgroups.scheduling.k8s.io in all namespaces: "bob" lacks the rule '
    "- {apiGroups: [scheduling.k8s.io], resources: [podgroups], verbs: [list]}.": (
        "podgroups",
        answer(403, "Forbidden", 'podgroups.scheduling.k8s.io is forbidden: User "bob" cannot list resource "x"'),
    ),
    f"Cannot list {PLURAL}.resource.k8s.io in all namespaces: the API server does not serve "
    "resource.k8s.io/v1; Kubernetes >= 1.34 is needed.": (PLURAL, raw(404, b"404 page not found\n")),
    f"Cannot list {PLURAL}.resource.k8s.io in all namespaces: the API server does not accept the credentials; "
    "renew them in the kubeconfig.": (PLURAL, answer(401, "Unauthorized", "Unauthorized")),
    "Cannot list pods in all namespaces: the answer is not": ("pods", raw(200, b"<html>")),
    "Cannot list pods in all namespaces: the connection to": ("pods", hang_up),
}


@pytest.mark.parametrize(
    ("message", "plural", "fault"), [(message, *row) for message, row in UNLISTED.items()], ids=UNLISTED
)
async def test_objects_that_cannot_be_listed_are_reported_and_nothing_is_changed(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch, plural: str, fault: Handler, message: str
) -> None:
    monkeypatch.setattr(api_transport, "_PAUSE_AFTER_BREAK", 0.0)
    api.put(PLURAL, stored(4))
    serve_groups(api)
    api.fault("list", plural, fault, times=99)
    with pytest.raises(CannotPruneError) as caught:
        await prune(api)
    assert str(caught.value).startswith(message)
    assert {call.verb for call in api.seen if call.plural != "apis"} == {"list"}


async def test_temporary_errors_are_retried(api: FakeApi) -> None:
    api.put(PLURAL, stored(4))
    busy = answer(429, "TooManyRequests", "slow down", headers={"Retry-After": "1"})
    api.fault("list", "pods", busy)
    api.fault("list", "pods", answer(500, "InternalError", "oh"))
    time = Time()
    assert told(await prune(api, time=time)) == {FOUR: ("removed", "")}
    # The request itself waits as the server asks; an error without Retry-After is the prune's.
    assert time.slept == [1, 240]
    assert len(api.calls("list", "pods")) >= 3


@pytest.mark.parametrize(
    ("namespace", "role"), [("", "a ClusterRole"), ("team", "a Role in namespace team")], ids=["all", "one"]
)
async def test_no_step_is_taken_without_the_rights_for_all_steps(api: FakeApi, namespace: str, role: str) -> None:
    api.put(PLURAL, stored(4))
    api.heal()
    api.fault("create", REVIEWS, access("delete", "create"), times=9)
    with pytest.raises(CannotPruneError) as caught:
        await prune(api, namespace=namespace)
    assert str(caught.value) == (
        f"Not allowed to prune: give this account {role} with the rule "
        f"- {{apiGroups: [resource.k8s.io], resources: [{PLURAL}], verbs: [delete, create]}}"
    )
    assert api.calls("patch", PLURAL) == []


async def test_prune_works_without_the_right_to_review_access(api: FakeApi) -> None:
    api.put(PLURAL, stored(4))
    api.heal()
    api.fault("create", REVIEWS, answer(403, "Forbidden", "no"), times=9)
    assert told(await prune(api)) == {FOUR: ("removed", "")}


@pytest.mark.parametrize(("verb", "done"), [("patch", "marked"), ("delete", "removed")])
async def test_a_failed_removal_does_not_stop_the_others(api: FakeApi, verb: str, done: str) -> None:
    api.put(PLURAL, stored(4))
    api.put(PLURAL, stored(8))
    api.fault(verb, PLURAL, answer(403, "Forbidden", forbidden(verb)))
    report = await prune(api)
    assert report.failed
    assert sorted(told(report).values()) == [
        (
            "failed",
            f'could not be {done}: "bob" lacks the rule '
            f"- {{apiGroups: [resource.k8s.io], resources: [{PLURAL}], verbs: [{verb}]}}",
        ),
        ("removed", ""),
    ]


async def test_a_mark_that_cannot_be_removed_is_reported(api: FakeApi) -> None:
    api.put(PLURAL, stored(4))

    def meanwhile() -> None:
        api.put("pods", templates_pod("late", FOUR))
        api.fault("patch", PLURAL, answer(500, "InternalError", "oh"))

    report = await prune(api, meanwhile)
    assert told(report) == {FOUR: ("failed", "could not be unmarked: HTTP 500, 'oh'")}


@pytest.mark.parametrize("body", [b"<html>", b"{}"], ids=["no JSON", "no object"])
async def test_a_template_is_not_removed_if_the_answer_to_its_mark_is_unreadable(api: FakeApi, body: bytes) -> None:
    api.put(PLURAL, stored(4))
    api.fault("patch", PLURAL, raw(200, body))
    report = await prune(api)
    assert told(report)[FOUR][0] == PruneAction.FAILED
    assert names(api) == {FOUR}


async def test_pods_that_cannot_be_listed_again_leave_the_marks_and_all_templates(api: FakeApi) -> None:
    api.put(PLURAL, stored(4))
    report = await prune(api, lambda: api.fault("list", "pods", answer(403, "Forbidden", "no"), times=9))
    assert report.failed
    assert report.problem == (
        "Cannot list pods in all namespaces: HTTP 403, 'no'. Nothing was removed; the next run continues "
        "with the marked templates."
    )
    assert mark_of(api, FOUR)


async def test_pods_that_cannot_be_listed_at_the_end_are_reported_as_uncertain(api: FakeApi) -> None:
    api.put(PLURAL, stored(4))

    async def last(request: Any) -> Any:
        api.fault("list", "pods", answer(403, "Forbidden", "no"), times=9)
        return api._list(request, "pods")

    def meanwhile() -> None:
        api.fault("list", "pods", last)

    report = await prune(api, meanwhile)
    assert told(report) == {FOUR: ("removed", "")}
    assert report.problem.endswith("It is unknown whether a new pod needs a removed template.")


# --- PodGroups and Workloads ----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["v1alpha2", "v1beta1"])
async def test_a_template_that_only_a_group_names_stays(api: FakeApi, version: str) -> None:
    for count in (2, 4, 8):
        api.put(PLURAL, stored(count))
    serve_groups(api, version)
    api.put("podgroups", pod_group("gang", FOUR))
    api.put("podgroups", pod_group("elsewhere", TWO, namespace="other"))
    api.put("workloads", workload("job", EIGHT))
    report = await prune(api)
    assert told(report) == {TWO: ("removed", "")}
    assert report.in_use == 2
    assert len(api.calls("list", "podgroups")) == 3


async def test_a_group_that_appears_during_the_grace_keeps_its_template(api: FakeApi) -> None:
    api.put(PLURAL, stored(4))
    serve_groups(api)
    report = await prune(api, lambda: api.put("podgroups", pod_group("gang", FOUR)))
    assert told(report) == {FOUR: ("kept", "PodGroup gang refers to it")}
    assert mark_of(api, FOUR) is None


async def test_pods_are_named_before_groups(api: FakeApi) -> None:
    api.put(PLURAL, stored(4))
    serve_groups(api)

    def meanwhile() -> None:
        api.put("podgroups", pod_group("a", FOUR))
        api.put("pods", templates_pod("z", FOUR))

    assert told(await prune(api, meanwhile)) == {FOUR: ("kept", "pod z and 1 more refer to it")}


async def test_nothing_is_removed_if_the_served_kinds_are_not_known(api: FakeApi) -> None:
    api.put(PLURAL, stored(4))
    api.kinds = [("broken", "v1", "Kind", ["not a name"], True)]  # type: ignore[list-item]
    with pytest.raises(CannotPruneError, match=r"^Cannot read which kinds the API server serves: "):
        await prune(api)
