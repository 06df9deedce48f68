"""Creation of ResourceClaimTemplates at an API server on a real socket."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from conversion.claims.templates import Template, digest
from neuron.codes import CODES
from tests.support.clocks import Clock
from tests.support.fake_api import FakeApi, answer, eventually, hang, hang_up, raw
from tests.support.generated import opened
from webhook.cluster.templates import Punctuality
from webhook.reviews.reviewer import OtherTemplateError, TemplateUnavailableError

PLURAL = "resourceclaimtemplates"
GROUP = "resource.k8s.io"
UNAVAILABLE = answer(503, "ServiceUnavailable", "etcdserver: leader changed")


def devices_template(count: int = 4) -> Template:
    exactly = {"deviceClassName": "neuron.aws.com", "count": count}
    return Template.make(f"{count}-devices", {"spec": {"devices": {"requests": [{"name": "n0", "exactly": exactly}]}}})


FOUR = devices_template()
REFUSED = f"ResourceClaimTemplate team/{FOUR.name} could not be created: "


def stored(spec: Any = FOUR.spec, name: str = FOUR.name, namespace: str = "team", **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": namespace, "labels": labels}, "spec": spec}


def defaulted(item: dict[str, Any]) -> dict[str, Any]:
    """A template as kube-apiserver 1.36 stores it."""
    requests = item["spec"]["spec"]["devices"]["requests"]
    filled = [{**request, "exactly": {**request["exactly"], "allocationMode": "ExactCount"}} for request in requests]
    return {**item, "spec": {"metadata": {}, "spec": {"devices": {"requests": filled}}}}


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with FakeApi().serve() as api:
        api.store = defaulted
        yield api


# --- success ------------------------------------------------------------------------------------------------


async def test_a_template_that_is_cached_needs_no_request(api: FakeApi) -> None:
    api.put(PLURAL, defaulted(stored()))
    async with opened(api) as store:
        assert store.holds("team", FOUR)
        await store.ensure("team", FOUR)
        assert api.calls("create", PLURAL) == []


async def test_a_missing_template_is_created_with_our_labels(api: FakeApi) -> None:
    async with opened(api) as store:
        assert not store.holds("team", FOUR)
        await store.ensure("team", FOUR)
        assert store.holds("team", FOUR)
        (call,) = api.calls("create", PLURAL)
        assert (call.namespace, call.query) == ("team", {"fieldManager": "neuron-dra"})
        made = api.get(PLURAL, FOUR.name, "team")
        assert made["metadata"]["labels"] == {"app.kubernetes.io/managed-by": "neuron-dra"}


async def test_each_namespace_gets_its_own_template(api: FakeApi) -> None:
    async with opened(api) as store:
        await store.ensure("team", FOUR)
        assert not store.holds("other", FOUR)
        await store.ensure("other", FOUR)
        assert [call.namespace for call in api.calls("create", PLURAL)] == ["team", "other"]


@pytest.mark.parametrize("labels", [{}, {"app.kubernetes.io/managed-by": "neuron-dra"}], ids=["unlabelled", "ours"])
async def test_a_template_that_another_client_created_is_used(api: FakeApi, labels: dict[str, str]) -> None:
    async with opened(api, watch=False) as store:
        api.put(PLURAL, defaulted(stored(**labels)))
        await store.ensure("team", FOUR)
        assert store.holds("team", FOUR)
        assert [len(api.calls(verb, PLURAL)) for verb in ("create", "get")] == [1, 1]


async def test_a_template_that_was_created_and_deleted_meanwhile_is_created_again(api: FakeApi) -> None:
    async with opened(api, watch=False) as store:
        api.fault("create", PLURAL, answer(409, "AlreadyExists", "already exists"))
        await store.ensure("team", FOUR)
        assert [len(api.calls(verb, PLURAL)) for verb in ("create", "get")] == [2, 1]


async def test_a_hundred_simultaneous_pods_create_the_template_once(api: FakeApi) -> None:
    async with opened(api, watch=False) as store:
        await asyncio.gather(*(store.ensure("team", FOUR) for _ in range(100)))
        await store.ensure("team", FOUR)
        assert len(api.calls("create", PLURAL)) == 1


async def test_a_created_template_is_forgotten_when_the_watch_reports_its_deletion(api: FakeApi) -> None:
    async with opened(api) as store:
        await store.ensure("team", FOUR)
        api.remove(PLURAL, FOUR.name, "team")
        await eventually(lambda: not store.holds("team", FOUR))
        await store.ensure("team", FOUR)
        assert len(api.calls("create", PLURAL)) == 2


async def test_a_created_template_that_the_watch_never_shows_is_forgotten_after_a_minute(api: FakeApi) -> None:
    clock = Clock(100.0)
    async with opened(api, watch=False, clock=clock) as store:
        await store.ensure("team", FOUR)
        clock.now += 59
        assert store.holds("team", FOUR)
        clock.now += 2
        assert not store.holds("team", FOUR)
        await store.ensure("team", devices_template(8))
        await store.ensure("team", FOUR)
        assert store.holds("team", FOUR)
        assert store.holds("team", devices_template(8))


async def test_a_template_with_another_spec_does_not_count_as_existing(api: FakeApi) -> None:
    api.put(PLURAL, defaulted(stored(spec=devices_template(8).spec)))
    async with opened(api) as store:
        assert not store.holds("team", FOUR)


# --- retries ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(UNAVAILABLE, id="503"),
        pytest.param(answer(429, "TooManyRequests", "slow down"), id="429"),
        pytest.param(answer(500, "InternalError", "failed calling webhook"), id="500"),
        pytest.param(hang_up, id="broken connection"),
        pytest.param(raw(201, b"<html>"), id="not JSON"),
    ],
)
async def test_a_passing_failure_is_retried(api: FakeApi, fault: Any) -> None:
    api.fault("create", PLURAL, fault)
    async with opened(api) as store:
        await store.ensure("team", FOUR)
        assert len(api.calls("create", PLURAL)) == 2


@pytest.mark.parametrize(
    ("fault", "code", "why"),
    [
        pytest.param(
            UNAVAILABLE, "NEU304", "the API server answered HTTP 503, 'etcdserver: leader changed'.", id="503"
        ),
        pytest.param(hang_up, "NEU302", "the connection to {url} broke: Server disconnected.", id="broken connection"),
        pytest.param(raw(201, b"<html>"), "NEU302", "the answer is not JSON: ", id="not JSON"),
        pytest.param(raw(201, b"{}"), "NEU302", "the answer is not a ResourceClaimTemplate.", id="no template"),
        pytest.param(
            answer(401, "Unauthorized", "Unauthorized"),
            "NEU302",
            "the API server does not accept the webhook's credentials.",
            id="credentials",
        ),
        pytest.param(
            answer(409, "AlreadyExists", "already exists"),
            "NEU302",
            "it existed, and was deleted before it could be read.",
            id="comes and goes",
        ),
    ],
)
async def test_a_failure_that_lasts_raises_template_unavailable(api: FakeApi, fault: Any, code: str, why: str) -> None:
    clock = Clock(100.0)
    api.fault("create", PLURAL, fault, times=99)
    async with opened(api, clock=clock, sleep=clock.sleep) as store:
        with pytest.raises(TemplateUnavailableError) as caught:
            await store.ensure("team", FOUR)
        error = caught.value
        assert (error.finding.code, error.status_code, error.status_reason) == (code, 503, "ServiceUnavailable")
        assert error.finding.message.startswith(REFUSED + why.format(url=api.url))
        assert error.finding.fix
        # Pauses of 2, 4, ... 256 ms, and then of half a second each, within 3.5 s.
        assert len(api.calls("create", PLURAL)) == (2 if "credentials" in why else 14)
        assert clock.now < 103.5


async def test_the_pause_that_the_api_server_names_is_kept(api: FakeApi) -> None:
    busy = answer(429, "TooManyRequests", "too many requests", headers={"Retry-After": "1"})
    api.fault("create", PLURAL, busy, times=3)
    clock, waited = Clock(100.0), []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    connection_options = {"sleep": sleep}
    async with opened(api, connection_options=connection_options, clock=clock, sleep=clock.sleep) as store:
        await store.ensure("team", FOUR)
    assert waited == [1, 1, 1]
    assert len(api.calls("create", PLURAL)) == 4


async def test_a_pause_beyond_the_budget_is_not_waited_for(api: FakeApi) -> None:
    api.fault("create", PLURAL, answer(429, "TooManyRequests", "busy", headers={"Retry-After": "30"}), times=9)
    async with opened(api) as store:
        with pytest.raises(TemplateUnavailableError, match="the API server answered HTTP 429, 'busy'") as caught:
            await store.ensure("team", FOUR)
    assert caught.value.finding.code == "NEU304"
    assert len(api.calls("create", PLURAL)) == 1


async def test_the_api_server_is_not_blamed_for_a_busy_replica(api: FakeApi) -> None:
    api.fault("create", PLURAL, hang, times=9)

    @contextlib.contextmanager
    def late() -> Iterator[Punctuality]:
        clock = Clock(100.0)
        found = Punctuality(clock)
        clock.now += 60  # The event loop has not come to look at the clock.
        yield found

    async with opened(api, budget=0.1, punctuality=late) as store:
        with pytest.raises(TemplateUnavailableError, match="this replica of the webhook had too much other") as caught:
            await store.ensure("team", FOUR)
    assert caught.value.finding.code == "NEU305"


async def test_creating_a_template_ends_within_the_budget_if_the_server_hangs(api: FakeApi) -> None:
    api.fault("create", PLURAL, hang, times=9)
    async with opened(api, budget=0.1) as store:
        begun = asyncio.get_running_loop().time()
        with pytest.raises(TemplateUnavailableError, match="did not answer in time"):
            await store.ensure("team", FOUR)
        assert asyncio.get_running_loop().time() - begun < 1
        assert len(api.calls("create", PLURAL)) == 1


async def test_no_retry_starts_beyond_the_budget(api: FakeApi) -> None:
    clock = Clock(100.0)
    api.fault("create", PLURAL, UNAVAILABLE, times=9)
    async with opened(api, clock=clock, sleep=clock.sleep, budget=0.4, pause=0.5) as store:
        with pytest.raises(TemplateUnavailableError, match="leader changed"):
            await store.ensure("team", FOUR)
        assert (len(api.calls("create", PLURAL)), clock.now) == (1, 100)


async def test_a_budget_that_ends_between_two_requests_is_reported(api: FakeApi) -> None:
    clock = Clock(100.0)

    async def late(request: Any) -> Any:
        clock.now += 5
        return await answer(409, "AlreadyExists", "already exists")(request)

    api.fault("create", PLURAL, late)
    async with opened(api, clock=clock) as store:
        with pytest.raises(TemplateUnavailableError, match=r"no time left of 3\.5 s\."):
            await store.ensure("team", FOUR)


# --- refusals -----------------------------------------------------------------------------------------------


REFUSALS: dict[str, Any] = {
    'the webhook runs as "system:serviceaccount:neuron-dra:neuron-dra", which is not allowed to create '
    f'{PLURAL}.{GROUP} in namespace "team".': (
        answer(
            403,
            "Forbidden",
            f'{PLURAL}.{GROUP} is forbidden: User "system:serviceaccount:neuron-dra:neuron-dra" cannot create '
            f'resource "{PLURAL}" in API group "{GROUP}" in the namespace "team"',
        ),
        (403, "Forbidden"),
        "An administrator has to add this rule to its ClusterRole: "
        "- {apiGroups: [resource.k8s.io], resources: [resourceclaimtemplates], verbs: [create]}",
    ),
    f'HTTP 403, \'{PLURAL}.{GROUP} "x" is forbidden: exceeded quota: few, requested: count/{PLURAL}.{GROUP}=1, '
    f"used: count/{PLURAL}.{GROUP}=9, limited: count/{PLURAL}.{GROUP}=9'.": (
        answer(
            403,
            "Forbidden",
            f'{PLURAL}.{GROUP} "x" is forbidden: exceeded quota: few, requested: count/{PLURAL}.{GROUP}=1, '
            f"used: count/{PLURAL}.{GROUP}=9, limited: count/{PLURAL}.{GROUP}=9",
        ),
        (403, "Forbidden"),
        f"Raise count/{PLURAL}.{GROUP} there, or delete unused templates.",
    ),
    'namespace "team" is being deleted.': (
        answer(
            403,
            "Forbidden",
            "unable to create new content in namespace team because it is being terminated",
            causes=[{"reason": "NamespaceTerminating", "field": "metadata.namespace"}],
        ),
        (403, "Forbidden"),
        "Wait until it is deleted, create it again and try again.",
    ),
    'namespace "team" does not exist.': (
        answer(404, "NotFound", 'namespaces "team" not found', name="team", kind="namespaces"),
        (404, "NotFound"),
        "Create it: kubectl create namespace team",
    ),
    "the API server does not serve resource.k8s.io/v1.": (
        raw(404, b"404 page not found\n"),
        (404, "Unknown"),
        "Kubernetes >= 1.34 is needed.",
    ),
    "HTTP 422, 'ResourceClaimTemplate \"x\" is invalid: spec: Invalid value'.": (
        answer(422, "Invalid", 'ResourceClaimTemplate "x" is invalid: spec: Invalid value'),
        (422, "Invalid"),
        "Change what the API server names, or the policy that refuses it.",
    ),
    "HTTP 400, 'admission webhook \"x\" denied the request: no'.": (
        answer(400, "BadRequest", 'admission webhook "x" denied the request: no'),
        (400, "BadRequest"),
        "Change what the API server names, or the policy that refuses it.",
    ),
}


@pytest.mark.parametrize(
    ("why", "fault", "status", "fix"), [(why, *row) for why, row in REFUSALS.items()], ids=REFUSALS
)
async def test_a_refusal_is_explained_and_not_retried(
    api: FakeApi, fault: Any, status: tuple[int, str], why: str, fix: str
) -> None:
    api.fault("create", PLURAL, fault, times=9)
    async with opened(api) as store:
        with pytest.raises(TemplateUnavailableError) as caught:
            await store.ensure("team", FOUR)
        error = caught.value
        assert (error.status_code, error.status_reason) == status
        assert error.finding.code == "NEU301"
        assert error.finding.message == REFUSED + why
        assert error.finding.fix == fix
        assert (error.finding.path, error.finding.value) == ("spec.resourceClaims", FOUR.name)
        assert len(api.calls("create", PLURAL)) == 1


async def test_a_missing_right_to_read_is_reported(api: FakeApi) -> None:
    async with opened(api, watch=False) as store:
        api.put(PLURAL, defaulted(stored()))
        api.forbid("get", PLURAL, GROUP)
        with pytest.raises(TemplateUnavailableError, match=f'"nobody", which is not allowed to get {PLURAL}') as caught:
            await store.ensure("team", FOUR)
        assert "resources: [resourceclaimtemplates], verbs: [get]}" in caught.value.finding.fix


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        pytest.param({}, "it is not labelled app.kubernetes.io/managed-by=neuron-dra.", id="foreign"),
        pytest.param(
            {"app.kubernetes.io/managed-by": "neuron-dra"},
            "it is labelled app.kubernetes.io/managed-by=neuron-dra.",
            id="our label alone is not trusted",
        ),
    ],
)
async def test_a_foreign_spec_under_our_name_is_a_conflict(api: FakeApi, labels: dict[str, str], said: str) -> None:
    api.put(PLURAL, defaulted(stored(spec=devices_template(8).spec, **labels)))
    async with opened(api) as store:
        with pytest.raises(TemplateUnavailableError) as caught:
            await store.ensure("team", FOUR)
        error = caught.value
        assert (error.finding.code, error.status_code, error.status_reason) == ("NEU303", 409, "Conflict")
        assert error.finding.message == (
            f"ResourceClaimTemplate team/{FOUR.name} exists with another spec than its name's hash; {said}"
        )
        assert f"kubectl delete resourceclaimtemplate {FOUR.name} -n team" in error.finding.fix
        assert not store.holds("team", FOUR)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b'{"metadata": {}, "spec": {"spec": "\\ud800"}}', id="half a character"),
        pytest.param(b'{"metadata": {}, "spec": {"a": ' + b"[" * 5000 + b"]" * 5000 + b"}}", id="deep"),
        pytest.param(b'{"metadata": {}, "spec": {"a": ' + b"[" * 900 + b"]" * 900 + b"}}", id="less deep"),
        pytest.param(b'{"metadata": {}, "spec": 7}', id="another type"),
    ],
)
async def test_an_unreadable_stored_template_is_a_conflict(api: FakeApi, body: bytes) -> None:
    conflict = answer(409, "AlreadyExists", "already exists")
    for _ in range(2):
        api.fault("create", PLURAL, conflict)
        api.fault("get", PLURAL, raw(200, body))
    async with opened(api) as store:
        with pytest.raises(TemplateUnavailableError) as real:
            await store.ensure("team", FOUR)
        with pytest.raises(TemplateUnavailableError) as dry:
            await store.check("team", FOUR)
        assert (real.value.finding.code, dry.value.finding.code) == ("NEU303", "NEU303")
        assert real.value.status_code == 409


async def test_an_html_answer_of_a_proxy_is_an_error(api: FakeApi) -> None:
    api.fault("get", PLURAL, raw(200, b"<html>"))
    async with opened(api) as store:
        with pytest.raises(TemplateUnavailableError) as caught:
            await store.check("team", FOUR)
        assert caught.value.finding.code == "NEU302"


async def test_a_spec_that_is_not_stored_as_sent_is_an_error(api: FakeApi) -> None:
    api.store = lambda item: {**item, "spec": {"spec": {"devices": {"requests": [{"name": "n0"}]}}}}
    async with opened(api) as store:
        with pytest.raises(TemplateUnavailableError, match="was not stored as it was sent") as caught:
            await store.ensure("team", FOUR)
        error = caught.value
        assert (error.finding.code, error.status_code, error.status_reason) == ("NEU301", 422, "Invalid")
        assert "feature gates" in error.finding.fix
        assert not store.holds("team", FOUR)


def test_the_codes_are_listed() -> None:
    assert {"NEU301", "NEU302", "NEU303"} <= set(CODES)


# --- sharing one attempt --------------------------------------------------------------------------------------


async def test_waiting_requests_share_a_failure_and_later_ones_try_again(api: FakeApi) -> None:
    api.fault("create", PLURAL, answer(400, "BadRequest", "no"))
    async with opened(api) as store:
        results = await asyncio.gather(*(store.ensure("team", FOUR) for _ in range(5)), return_exceptions=True)
        assert [type(result) for result in results] == [TemplateUnavailableError] * 5
        assert len(api.calls("create", PLURAL)) == 1
        await store.ensure("team", FOUR)
        assert store.holds("team", FOUR)


async def test_a_cancelled_waiter_does_not_cancel_the_others(api: FakeApi) -> None:
    gate = asyncio.Event()

    async def slow(request: Any) -> Any:
        await gate.wait()
        return await UNAVAILABLE(request)

    api.fault("create", PLURAL, slow)
    async with opened(api) as store:
        first, second = (asyncio.create_task(store.ensure("team", FOUR)) for _ in range(2))
        await eventually(lambda: api.calls("create", PLURAL))
        first.cancel()
        gate.set()
        await second
        assert first.cancelled()
        assert store.holds("team", FOUR)


async def test_a_failure_without_waiters_is_not_logged(api: FakeApi) -> None:
    gate = asyncio.Event()

    async def slow(request: Any) -> Any:
        await gate.wait()
        return await answer(400, "BadRequest", "no")(request)

    api.fault("create", PLURAL, slow)
    async with opened(api) as store:
        waiting = asyncio.create_task(store.ensure("team", FOUR))
        await eventually(lambda: api.calls("create", PLURAL))
        waiting.cancel()
        gate.set()
        await eventually(lambda: store.counters.failed)


async def test_closing_cancels_requests_in_progress(api: FakeApi) -> None:
    api.fault("create", PLURAL, hang)
    async with opened(api) as store:
        waiting = asyncio.create_task(store.ensure("team", FOUR))
        await eventually(lambda: api.calls("create", PLURAL))
        await store.close()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("create ")]


# --- dry runs ---------------------------------------------------------------------------------------------------


async def test_a_dry_run_finds_a_template_that_only_the_api_server_knows(api: FakeApi) -> None:
    async with opened(api, watch=False) as store:
        assert not await store.check("team", FOUR)
        api.put(PLURAL, defaulted(stored()))
        assert await store.check("team", FOUR)
        assert api.calls("create", PLURAL) == []


async def test_a_dry_run_reports_a_foreign_template_like_the_creation(api: FakeApi) -> None:
    api.put(PLURAL, defaulted(stored(devices_template(16).spec)))
    async with opened(api) as store:
        with pytest.raises(TemplateUnavailableError) as dry:
            await store.check("team", FOUR)
        with pytest.raises(TemplateUnavailableError) as real:
            await store.ensure("team", FOUR)
    assert dry.value.finding.code == "NEU303"
    assert (dry.value.finding, dry.value.status_code) == (real.value.finding, real.value.status_code)


async def test_a_dry_run_warns_if_the_api_server_cannot_be_read(api: FakeApi) -> None:
    api.fault("get", PLURAL, UNAVAILABLE)
    async with opened(api) as store:
        with pytest.raises(TemplateUnavailableError) as refused:
            await store.check("team", FOUR)
    assert (refused.value.finding.code, refused.value.status_code) == ("NEU304", 503)
    assert refused.value.finding.message.startswith(f"ResourceClaimTemplate team/{FOUR.name} could not be read: ")


async def test_the_number_of_remembered_templates_is_bounded(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("webhook.cluster.templates._MOST_REMEMBERED", 3)
    async with opened(api, watch=False) as store:
        for count in range(1, 9):
            await store.ensure("team", devices_template(count))
        assert len(store._made) == 3
        assert [store.holds("team", devices_template(count)) for count in range(1, 9)] == [False] * 5 + [True] * 3


# --- templates of operators --------------------------------------------------------------------------------


async def test_the_template_of_an_operator_is_read_from_the_cache_or_the_api_server(api: FakeApi) -> None:
    async with opened(api) as store:
        api.put(PLURAL, stored(name="own"))
        found = await store.read("team", "own")
        assert found.spec is not None
        assert found.spec.requests[0].alternatives[0].count == 4
        assert not found.missing


async def test_a_missing_template_of_an_operator_is_reported(api: FakeApi) -> None:
    api.put(PLURAL, stored(name="own", namespace="other"))
    async with opened(api) as store:
        found = await store.read("team", "own")
        assert (found.spec, found.missing, found.elsewhere) == (None, True, True)
        nowhere = await store.read("team", "nowhere")
        assert (nowhere.missing, nowhere.elsewhere) == (True, False)
        api.fault("get", PLURAL, UNAVAILABLE, times=9)
        with pytest.raises(
            TemplateUnavailableError, match="own could not be read: the API server answered HTTP 503, 'etcdserver"
        ):
            await store.read("team", "own")


async def test_a_template_that_a_policy_carries_is_made_once_and_not_overwritten(api: FakeApi) -> None:
    carried = Template("own", FOUR.spec, FOUR.digest, "team-a", {"team": "a"}, {"note": "x"})
    async with opened(api) as store:
        await store.ensure("team", carried)
        await store.ensure("team", carried)
        assert len(api.calls("create", PLURAL)) == 1
        other = Template("own", devices_template(8).spec, devices_template(8).digest, "team-a")
        with pytest.raises(TemplateUnavailableError) as caught:
            await store.ensure("team", other)
        assert caught.value.finding.code == "NEU122"
        assert "exists with another spec than policy 'team-a' gives it" in caught.value.finding.message


# --- templates of ClaimTemplates ------------------------------------------------------------------------------


def versioned(version: int = 2, count: int = 8) -> Template:
    spec = devices_template(count).spec
    return Template("xl-trn2", spec, digest(spec), "xl", version=version)


def made_before(version: str = "1", count: int = 4, *, manager: str = "neuron-dra", **metadata: Any) -> dict[str, Any]:
    """A template as the webhook made it for an earlier version."""
    item = defaulted(stored(devices_template(count).spec, "xl-trn2", **{"app.kubernetes.io/managed-by": "neuron-dra"}))
    annotations = {"neuron.aws.com/template-digest": digest(item["spec"]), "neuron.aws.com/template-version": version}
    ours = {"annotations": annotations, "managedFields": [{"manager": manager}], "uid": "u", **metadata}
    return {**item, "metadata": {**item["metadata"], **ours}}


@pytest.mark.parametrize("watch", [True, False], ids=["seen", "not seen"])
async def test_an_earlier_version_is_replaced(api: FakeApi, watch: bool) -> None:
    async with opened(api, watch=watch) as store:
        api.put(PLURAL, made_before())
        if watch:
            await eventually(lambda: store.other("team", versioned(1)) == 1)
        assert store.other("team", versioned()) is None
        assert not await store.check("team", versioned())
        await store.ensure("team", versioned())
        assert len(api.calls("delete", PLURAL)) == 1
        after = api.get(PLURAL, "xl-trn2", "team")
        assert after["metadata"]["annotations"]["neuron.aws.com/template-version"] == "2"
        assert store.counters.created == 1


@pytest.mark.parametrize(
    ("item", "version"),
    [
        pytest.param(made_before("3"), 3, id="later"),
        pytest.param(made_before("2"), 2, id="same version, other spec"),
        pytest.param(made_before(manager="kubectl"), 0, id="written by another client"),
        pytest.param(made_before(ownerReferences=[{"uid": "o"}]), 0, id="owned"),
        pytest.param(made_before("0"), 0, id="no version"),
        pytest.param(made_before("1" * 4000), 0, id="long version"),
        pytest.param(made_before("one"), 0, id="version in words"),
        pytest.param({**made_before(), "spec": defaulted(stored(devices_template(2).spec))["spec"]}, 0, id="changed"),
        pytest.param(defaulted(stored(devices_template(4).spec, "xl-trn2")), 0, id="tenant's"),
    ],
)
@pytest.mark.parametrize("watch", [True, False], ids=["seen", "not seen"])
async def test_no_other_template_is_touched(api: FakeApi, item: dict[str, Any], version: int, watch: bool) -> None:
    async with opened(api, watch=watch) as store:
        api.put(PLURAL, item)
        if watch:
            await eventually(lambda: store.other("team", versioned()) == version)
        with pytest.raises(OtherTemplateError) as caught:
            await store.ensure("team", versioned())
        with pytest.raises(OtherTemplateError):
            await store.check("team", versioned())
        assert (caught.value.version, caught.value.finding.code) == (version, "NEU721")
        assert api.calls("delete", PLURAL) == []
        assert api.get(PLURAL, "xl-trn2", "team")["spec"] == item["spec"]


async def test_a_template_that_changed_since_it_was_read_is_read_again(api: FakeApi) -> None:
    async with opened(api, watch=False) as store:
        api.put(PLURAL, made_before())
        api.fault("delete", PLURAL, answer(409, "Conflict", "the UID in the precondition differs"))
        await store.ensure("team", versioned())
        assert len(api.calls("delete", PLURAL)) == 2
        assert api.get(PLURAL, "xl-trn2", "team")["metadata"]["annotations"]["neuron.aws.com/template-version"] == "2"
