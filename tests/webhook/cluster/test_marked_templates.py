"""A marked template does not count as existing: its mark is removed first, or it is created again."""

import asyncio
from typing import Any

import pytest

from tests.support.fake_api import FakeApi, answer, eventually, hang, status
from tests.support.generated import MARK, PLURAL, forbidden, opened, stored, template
from webhook.reviews.reviewer import TemplateUnavailableError

FOUR = template(4)
FIRST, SECOND = "2026-03-01T12:00:00.000001Z", "2026-03-01T13:00:00.000001Z"


def mark_of(api: FakeApi) -> str | None:
    mark: str | None = api.get(PLURAL, FOUR.name, "team")["metadata"].get("annotations", {}).get(MARK)
    return mark


def marked(api: FakeApi, mark: str) -> None:
    item = api.get(PLURAL, FOUR.name, "team")
    api.put(PLURAL, {**item, "metadata": {**item["metadata"], "annotations": {MARK: mark}}})


async def test_a_marked_template_is_not_held_and_its_mark_is_taken_off(api: FakeApi) -> None:
    version = api.put(PLURAL, stored(4, mark=FIRST))["metadata"]["resourceVersion"]
    async with opened(api) as store:
        assert not store.holds("team", FOUR)
        await store.ensure("team", FOUR)
        assert mark_of(api) is None
        assert api.get(PLURAL, FOUR.name, "team")["metadata"]["resourceVersion"] != version
        assert store.holds("team", FOUR)
        assert api.calls("create", PLURAL) == []
        [call] = api.calls("patch", PLURAL)
        assert (call.namespace, call.query) == ("team", {"fieldManager": "neuron-dra"})


async def test_a_removed_mark_counts_before_the_watch_event_arrives(api: FakeApi) -> None:
    api.put(PLURAL, stored(4, mark=FIRST))
    async with opened(api, watch=False) as store:
        await asyncio.gather(*(store.ensure("team", FOUR) for _ in range(50)))
        await store.ensure("team", FOUR)
        assert store.holds("team", FOUR)
        assert len(api.calls("patch", PLURAL)) == 1


async def test_a_second_mark_is_not_taken_for_the_first(api: FakeApi) -> None:
    api.put(PLURAL, stored(4, mark=FIRST))
    async with opened(api) as store:
        await store.ensure("team", FOUR)
        marked(api, SECOND)
        await eventually(lambda: not store.holds("team", FOUR))
        await store.ensure("team", FOUR)
        assert mark_of(api) is None
        assert len(api.calls("patch", PLURAL)) == 2


async def test_a_mark_that_is_set_during_the_removal_of_another_is_kept_as_uncertain(api: FakeApi) -> None:
    """The answer does not contain which of the two marks it removed."""
    api.put(PLURAL, stored(4, mark=FIRST))
    async with opened(api) as store:

        async def marked_again(_: Any) -> Any:
            from aiohttp import web

            item = stored(4)
            marked(api, SECOND)
            await eventually(lambda: store._mark(("team", FOUR.name), FOUR) == SECOND)
            return web.json_response(item)

        api.fault("patch", PLURAL, marked_again)
        await store.ensure("team", FOUR)
        assert not store.holds("team", FOUR)


async def test_a_template_that_is_deleted_before_its_mark_is_removed_is_created_again(api: FakeApi) -> None:
    api.put(PLURAL, stored(4, mark=FIRST))
    async with opened(api, watch=False) as store:
        api.remove(PLURAL, FOUR.name, "team")
        await store.ensure("team", FOUR)
        assert store.holds("team", FOUR)
        assert mark_of(api) is None
        assert [len(api.calls(verb, PLURAL)) for verb in ("patch", "create")] == [1, 1]


async def test_an_existing_marked_template_is_kept_and_its_mark_removed(api: FakeApi) -> None:
    async with opened(api, watch=False) as store:
        api.put(PLURAL, stored(4, mark=FIRST))
        await store.ensure("team", FOUR)
        assert mark_of(api) is None
        assert [len(api.calls(verb, PLURAL)) for verb in ("create", "get", "patch")] == [1, 1, 1]


async def test_a_template_that_is_pruned_between_two_requests_is_created_again(api: FakeApi) -> None:
    async with opened(api, watch=False) as store:
        api.put(PLURAL, stored(4, mark=FIRST))

        async def pruned(request: Any) -> Any:
            api.remove(PLURAL, FOUR.name, "team")
            return await answer(404, "NotFound", "not found")(request)

        api.fault("patch", PLURAL, pruned)
        await store.ensure("team", FOUR)
        assert mark_of(api) is None
        assert len(api.calls("create", PLURAL)) == 2


async def test_a_foreign_template_with_a_mark_is_not_changed(api: FakeApi) -> None:
    api.put(PLURAL, {**stored(4, mark=FIRST), "spec": stored(8)["spec"]})
    async with opened(api) as store:
        with pytest.raises(TemplateUnavailableError, match="exists with another spec"):
            await store.ensure("team", FOUR)
        assert mark_of(api) == FIRST
        assert api.calls("patch", PLURAL) == []


async def test_a_marked_template_with_another_spec_is_a_conflict(api: FakeApi) -> None:
    api.put(PLURAL, stored(4, mark=FIRST))
    async with opened(api, watch=False) as store:
        api.put(PLURAL, {**stored(4, mark=FIRST), "spec": stored(8)["spec"]})
        with pytest.raises(TemplateUnavailableError, match="exists with another spec") as caught:
            await store.ensure("team", FOUR)
        assert caught.value.finding.code == "NEU303"


async def test_the_pod_is_denied_with_the_missing_rule_without_the_right_to_patch(api: FakeApi) -> None:
    api.put(PLURAL, stored(4, mark=FIRST))
    api.fault("patch", PLURAL, answer(403, "Forbidden", forbidden("patch", FOUR.name)), times=9)
    async with opened(api) as store:
        with pytest.raises(TemplateUnavailableError) as caught:
            await store.ensure("team", FOUR)
        error = caught.value
        assert (error.finding.code, error.status_code, error.status_reason) == ("NEU301", 403, "Forbidden")
        assert error.finding.message == (
            f"ResourceClaimTemplate team/{FOUR.name} could not be kept from pruning: the webhook runs as "
            f'"bob", which is not allowed to patch {PLURAL}.resource.k8s.io in namespace "team".'
        )
        assert "verb patch on resourceclaimtemplates" in error.finding.fix or "verbs: [patch]" in error.finding.fix
        assert len(api.calls("patch", PLURAL)) == 1
        assert api.calls("create", PLURAL) == []


async def test_a_passing_failure_to_take_the_mark_off_is_retried_once(api: FakeApi) -> None:
    api.put(PLURAL, stored(4, mark=FIRST))
    api.fault("patch", PLURAL, answer(503, "ServiceUnavailable", "etcdserver: leader changed"))
    async with opened(api) as store:
        await store.ensure("team", FOUR)
        assert mark_of(api) is None
        assert len(api.calls("patch", PLURAL)) == 2


async def test_removing_a_mark_ends_within_the_budget_if_the_server_hangs(api: FakeApi) -> None:
    api.put(PLURAL, stored(4, mark=FIRST))
    api.fault("patch", PLURAL, hang, times=9)
    async with opened(api, budget=0.1) as store:
        begun = asyncio.get_running_loop().time()
        with pytest.raises(TemplateUnavailableError, match="did not answer in time"):
            await store.ensure("team", FOUR)
        assert asyncio.get_running_loop().time() - begun < 2


def test_the_status_of_a_named_object_names_the_right() -> None:
    from runtime.api_server import StatusError

    said = StatusError.from_status(status(403, "Forbidden", forbidden("delete", "neuron-4-abc")))
    assert said.missing_right == ("bob", "delete")
