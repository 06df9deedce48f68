"""The API server over real HTTP: versions, pages, watches, credentials, and everything that can go wrong."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from kubeletplugin import api_store
from kubeletplugin.api_store import ApiStore, connect, from_v1, to_v1
from runtime import api_transport
from runtime.api_server import (
    ApiAnswerError,
    ApiServerError,
    ClusterUnavailableError,
    StatusError,
    UnreachableError,
    UnreadableAnswerError,
)
from tests.kubeletplugin.fakes import NODE

GROUP = "/apis/resource.k8s.io"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """Answers by path, and remembers what it was asked."""

    def __init__(self, versions: tuple[str, ...] = ("v1", "v1beta2", "v1beta1")) -> None:
        self.answers: dict[str, Any] = {GROUP: {"versions": [{"version": version} for version in versions]}}
        self.requests: list[tuple[str, str, dict[str, str], Any]] = []
        self.headers: list[dict[str, str]] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json() if request.can_read_body else None
        self.requests.append((request.method, request.path, dict(request.query), body))
        self.headers.append(dict(request.headers))
        answer = self.answers.get(f"{request.method} {request.path}", self.answers.get(request.path))
        if callable(answer):
            return await answer(request)  # type: ignore[no-any-return]
        if answer is None:
            return status(404, "NotFound", f"{request.path} not found")
        return web.json_response(answer)


def status(code: int, reason: str = "", message: str = "") -> web.Response:
    return web.json_response({"kind": "Status", "code": code, "reason": reason, "message": message}, status=code)


def answering(response: Callable[[], web.Response]) -> Handler:
    async def handler(_request: web.Request) -> web.Response:
        return response()

    return handler


def kubeconfig(directory: Path, server: str) -> Path:
    path = directory / "kubeconfig"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": "secret"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(config))
    return path


@contextlib.asynccontextmanager
async def connected(server: Server, directory: Path) -> AsyncIterator[ApiStore]:
    application = web.Application()
    application.router.add_route("*", "/{tail:.*}", server.handle)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    api = await connect(kubeconfig(directory, f"http://127.0.0.1:{runner.addresses[0][1]}"), NODE)
    try:
        yield api
    finally:
        await api.close()
        await runner.cleanup()


def run_scenario(server: Server, directory: Path, scenario: Callable[[ApiStore], Awaitable[Any]]) -> Any:
    async def wrapped() -> Any:
        async with connected(server, directory) as api:
            return await scenario(api)

    return asyncio.run(wrapped())


DEVICE = {"name": "neuron-device-0", "attributes": {"deviceId": {"int": 0}}}
SLICE = {"apiVersion": "resource.k8s.io/v1", "metadata": {"name": "s"}, "spec": {"driver": "d", "devices": [DEVICE]}}
BETA = {
    "apiVersion": "resource.k8s.io/v1beta1",
    "metadata": {"name": "s"},
    "spec": {
        "driver": "d",
        "devices": [{"name": "neuron-device-0", "basic": {"attributes": {"deviceId": {"int": 0}}}}],
    },
}


def test_the_node_is_read_with_credentials(tmp_path: Path) -> None:
    server = Server()
    server.answers[f"/api/v1/nodes/{NODE}"] = {"metadata": {"name": NODE}}
    assert run_scenario(server, tmp_path, lambda api: api.node()) == {"metadata": {"name": NODE}}
    assert server.headers[0]["Authorization"] == "Bearer secret"


def test_a_claim_is_read_and_a_missing_claim_is_none(tmp_path: Path) -> None:
    server = Server()
    server.answers[f"{GROUP}/v1/namespaces/ns/resourceclaims/c"] = {"metadata": {"name": "c"}}

    async def scenario(api: ApiStore) -> list[Any]:
        return [await api.claim("ns", "c"), await api.claim("ns", "gone")]

    assert run_scenario(server, tmp_path, scenario) == [{"metadata": {"name": "c"}}, None]


def stored_slice(name: str, **more: Any) -> dict[str, Any]:
    spec = {"driver": "neuron.aws.com", "nodeName": NODE, "devices": [], **more}
    return {"metadata": {"name": name}, "spec": spec}


def listed(server: Server, directory: Path) -> list[str]:
    slices, _ = run_scenario(server, directory, lambda api: api.slices())
    return [body["metadata"]["name"] for body in slices]


@pytest.mark.parametrize("content", [b"[" * 5000 + b"]" * 5000, b"1" * 4301], ids=["deep", "4301 digits"])
def test_an_unreadable_object_does_not_hide_others_in_a_list(tmp_path: Path, content: bytes) -> None:
    items = [stored_slice("a"), stored_slice("odd", pool="CONTENT"), stored_slice("b")]
    body = json.dumps({"metadata": {"resourceVersion": "1"}, "items": items}).encode()

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=body.replace(b'"CONTENT"', content), content_type="application/json")

    server = Server()
    server.answers[f"{GROUP}/v1/resourceslices"] = answer
    assert listed(server, tmp_path) == ["a", "b"]


def test_a_page_that_is_too_long_is_requested_again_with_fewer_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def pages(request: web.Request) -> web.Response:
        few = int(request.query["limit"]) < 100
        items = [stored_slice("a", pool={"name": "x" * (10 if few else 100_000)})]
        return web.json_response({"items": items, "metadata": {"resourceVersion": "1"}})

    monkeypatch.setattr(api_transport, "LONGEST_ANSWER", 50_000)
    server = Server()
    server.answers[f"{GROUP}/v1/resourceslices"] = pages
    assert listed(server, tmp_path) == ["a"]
    assert [query["limit"] for _, path, query, _ in server.requests if path.endswith("slices")] == ["500", "125", "31"]


def test_an_unreadable_claim_is_not_requested_repeatedly(tmp_path: Path) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=b"[" * 5000 + b"]" * 5000, content_type="application/json")

    server = Server()
    server.answers[f"{GROUP}/v1/namespaces/ns/resourceclaims/odd"] = answer
    with pytest.raises(UnreadableAnswerError, match="is stored and cannot be read: it is nested too deeply") as caught:
        run_scenario(server, tmp_path, lambda api: api.claim("ns", "odd"))
    assert not caught.value.passing


def test_lists_are_read_page_by_page(tmp_path: Path) -> None:
    async def pages(request: web.Request) -> web.Response:
        last = "continue" in request.query
        more = {} if last else {"continue": "next"}
        items = [stored_slice("b" if last else "a")]
        return web.json_response({"items": items, "metadata": {"resourceVersion": "1", **more}})

    server = Server()
    server.answers[f"{GROUP}/v1/resourceslices"] = pages
    assert listed(server, tmp_path) == ["a", "b"]
    assert [query.get("limit") for _, path, query, _ in server.requests if path.endswith("slices")] == ["500", "500"]


@pytest.mark.parametrize(
    ("served", "used"),
    [
        (("v1", "v1beta2", "v1beta1", "v1alpha3"), "v1"),
        (("v1beta1", "v1beta2"), "v1beta2"),
        (("v1beta1",), "v1beta1"),
    ],
    ids=["1.34", "1.33", "1.32"],
)
def test_the_best_version_that_the_cluster_serves_is_used(tmp_path: Path, served: tuple[str, ...], used: str) -> None:
    server = Server(served)
    stored = BETA if used == "v1beta1" else SLICE | {"apiVersion": f"resource.k8s.io/{used}"}
    root = f"{GROUP}/{used}/resourceslices"
    server.answers[root] = {"items": [stored], "metadata": {"resourceVersion": "7"}}
    server.answers[f"POST {root}"] = server.answers[f"PUT {root}/s"] = stored
    server.answers[f"DELETE {root}/s"] = {}

    async def scenario(api: ApiStore) -> None:
        assert await api.slices() == ([SLICE], "7")
        assert await api.create(SLICE) == SLICE
        assert await api.update(SLICE) == SLICE
        await api.delete("s")

    run_scenario(server, tmp_path, scenario)
    sent = [body for method, _, _, body in server.requests if method in {"POST", "PUT"}]
    assert sent == [stored, stored]
    [query] = [query for method, path, query, _ in server.requests if method == "GET" and path == root]
    assert query["fieldSelector"] == f"spec.nodeName={NODE},spec.driver=neuron.aws.com"


@pytest.mark.parametrize(("served", "listed"), [((), "none"), (("v1alpha3",), "v1alpha3")], ids=["none", "alpha"])
def test_a_cluster_without_dra_is_reported(tmp_path: Path, served: tuple[str, ...], listed: str) -> None:
    with pytest.raises(ApiServerError) as caught:
        run_scenario(Server(served), tmp_path, lambda api: api.slices())
    assert str(caught.value) == (
        f"The cluster serves no usable version of resource.k8s.io (it serves {listed}): Dynamic Resource Allocation "
        "needs Kubernetes 1.34, or 1.32 with its beta API enabled."
    )
    assert caught.value.passing


def test_a_missing_api_group_has_no_version(tmp_path: Path) -> None:
    server = Server()
    del server.answers[GROUP]
    with pytest.raises(ApiServerError, match="it serves none"):
        run_scenario(server, tmp_path, lambda api: api.slices())


def test_served_versions_are_read_again_after_an_error(tmp_path: Path) -> None:
    server = Server(("v1beta1",))

    async def scenario(api: ApiStore) -> None:
        with pytest.raises(ApiServerError):
            await api.slices()
        server.answers[GROUP] = {"versions": [{"version": "v1"}]}
        server.answers[f"{GROUP}/v1/resourceslices"] = {"items": [], "metadata": {"resourceVersion": "1"}}
        assert await api.slices() == ([], "1")

    run_scenario(server, tmp_path, scenario)


@pytest.mark.parametrize(
    ("answer", "version"), [({"major": "1", "minor": "34+", "gitVersion": "v1.34.9-eks-1"}, "v1.34.9-eks-1"), ({}, "")]
)
def test_the_version_of_the_api_server(tmp_path: Path, answer: dict[str, str], version: str) -> None:
    server = Server()
    server.answers["/version"] = answer
    assert run_scenario(server, tmp_path, lambda api: api.kubernetes()) == version


def test_deleting_a_missing_slice_is_no_error(tmp_path: Path) -> None:
    run_scenario(Server(), tmp_path, lambda api: api.delete("gone"))


def test_the_two_forms_of_a_slice_translate_into_each_other() -> None:
    assert to_v1(BETA, "v1beta1") == SLICE
    assert from_v1(SLICE, "v1beta1") == BETA
    counters = {"apiVersion": "resource.k8s.io/v1", "spec": {"sharedCounters": []}}
    assert to_v1(from_v1(counters, "v1beta1"), "v1beta1") == counters


# --- errors ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "reason", "retryable"),
    [
        (403, "Forbidden", False),
        (409, "Conflict", False),
        (429, "TooManyRequests", True),
        (503, "ServiceUnavailable", True),
    ],
)
def test_errors_quote_the_answer_of_the_server(tmp_path: Path, code: int, reason: str, *, retryable: bool) -> None:
    server = Server()
    server.answers[f"/api/v1/nodes/{NODE}"] = answering(lambda: status(code, reason, "because"))
    with pytest.raises(ApiServerError) as caught:
        run_scenario(server, tmp_path, lambda api: api.node())
    error = caught.value
    assert isinstance(error, StatusError)
    assert (str(error), error.code, error.reason) == (f"HTTP {code}, 'because'", code, reason)
    assert error.passing is retryable


def test_an_error_page_of_a_proxy_is_quoted(tmp_path: Path) -> None:
    server = Server()
    server.answers[f"/api/v1/nodes/{NODE}"] = answering(lambda: web.Response(status=502, text="<h1>Bad Gateway</h1>\n"))
    with pytest.raises(ApiServerError, match=r"^HTTP 502, '<h1>Bad Gateway</h1>'$"):
        run_scenario(server, tmp_path, lambda api: api.node())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no json", "the answer to GET /api/v1/nodes/node-1 is not JSON: Expecting value"),
        ("[]", "the answer to GET /api/v1/nodes/node-1 is not a JSON object"),
    ],
    ids=["text", "list"],
)
def test_an_answer_that_is_no_object_is_an_error(tmp_path: Path, text: str, said: str) -> None:
    server = Server()
    server.answers[f"/api/v1/nodes/{NODE}"] = answering(lambda: web.Response(text=text))
    with pytest.raises(ApiServerError) as caught:
        run_scenario(server, tmp_path, lambda api: api.node())
    assert said in str(caught.value)


def test_404_for_the_api_version_does_not_mean_a_missing_claim(tmp_path: Path) -> None:
    server = Server()
    path = f"{GROUP}/v1/namespaces/ns/resourceclaims/c"
    server.answers[path] = answering(lambda: web.Response(status=404, text="404 page not found"))
    with pytest.raises(ApiServerError, match="HTTP 404, '404 page not found'"):
        run_scenario(server, tmp_path, lambda api: api.claim("ns", "c"))


async def test_an_unreachable_server_is_a_retryable_error(tmp_path: Path) -> None:
    api = await connect(kubeconfig(tmp_path, "http://127.0.0.1:1"), NODE)
    try:
        with pytest.raises(ApiServerError) as caught:
            await api.node()
        assert str(caught.value) == "cannot connect to http://127.0.0.1:1: Connection refused"
        assert caught.value.passing
    finally:
        await api.close()


def test_a_request_to_a_hanging_server_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(_request: web.Request) -> web.Response:
        await asyncio.sleep(1)
        return web.json_response({})

    monkeypatch.setattr(api_store, "REQUEST_TIMEOUT", 0.05)
    server = Server()
    server.answers[f"/api/v1/nodes/{NODE}"] = hang
    with pytest.raises(ApiServerError, match=r"^http://127\.0\.0\.1:\d+ did not answer in time$"):
        run_scenario(server, tmp_path, lambda api: api.node())


# --- watches --------------------------------------------------------------------------------------------------


def watching(*lines: Any, broken: bool = False) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            return web.json_response({"items": [], "metadata": {"resourceVersion": "5"}})
        response = web.StreamResponse()
        await response.prepare(request)
        for line in lines:
            await response.write(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n")
        if broken:
            assert request.transport is not None
            request.transport.close()
        return response

    return handler


async def collect(api: ApiStore) -> list[tuple[str, Any]]:
    return [event async for event in api.watch("5")]


def test_a_watch_yields_events_until_the_server_ends_it(tmp_path: Path) -> None:
    server = Server(("v1beta1",))
    bookmark = {"type": "BOOKMARK", "object": {"metadata": {}}}
    events = [{"type": kind, "object": BETA} for kind in ("ADDED", "MODIFIED", "DELETED")]
    server.answers[f"{GROUP}/v1beta1/resourceslices"] = watching(bookmark, *events)
    found = run_scenario(server, tmp_path, collect)
    assert found == [(kind, SLICE) for kind in ("ADDED", "MODIFIED", "DELETED")]
    assert server.requests[-1][2]["resourceVersion"] == "5"


NO_EVENT = "the answer is not the API's JSON: the line is no event"
WATCH_ERRORS: dict[str, tuple[Handler, type[ApiServerError], str]] = {
    "expired": (
        watching({"type": "ERROR", "object": {"code": 410, "reason": "Expired", "message": "too old"}}),
        StatusError,
        "HTTP 410, 'too old'",
    ),
    "refused": (answering(lambda: status(403, "Forbidden", "no")), StatusError, "HTTP 403, 'no'"),
    "garbage": (watching(b"garbage\n"), ApiAnswerError, NO_EVENT),
    "odd": (watching({}), ApiAnswerError, NO_EVENT),
    "broken": (watching(broken=True), UnreachableError, "the connection to http"),
}


@pytest.mark.parametrize("name", WATCH_ERRORS)
def test_a_failed_watch_raises_the_reason(tmp_path: Path, name: str) -> None:
    handler, kind, said = WATCH_ERRORS[name]
    server = Server()
    server.answers[f"{GROUP}/v1/resourceslices"] = handler
    with pytest.raises(kind) as caught:
        run_scenario(server, tmp_path, collect)
    assert str(caught.value).startswith(said)


# --- settings -------------------------------------------------------------------------------------------------


def test_the_error_outside_of_a_pod_asks_for_a_kubeconfig(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ClusterUnavailableError) as caught:
        asyncio.run(connect(None, NODE))
    assert str(caught.value) == (
        "this process does not run in a cluster (Service host/port is not set.): outside a pod, name a kubeconfig with "
        "--kubeconfig"
    )


FAULTY_KUBECONFIGS: dict[str, tuple[str | None, str]] = {
    "missing": (None, "cannot read {path}: No such file or directory"),
    "not-yaml": ("nonsense: [", "kubeconfig {path} is not YAML: "),
    "no-fields": ("{}", "kubeconfig {path} cannot be used: Invalid kube-config file."),
    "empty": ("", "kubeconfig {path} cannot be used: the file is empty or is not a kubeconfig ("),
    "comment": ("# nothing\n", "kubeconfig {path} cannot be used: the file is empty or is not a kubeconfig ("),
    "list": ("- a list\n", "kubeconfig {path} cannot be used: the file is empty or is not a kubeconfig ("),
    "text": ("text\n", "kubeconfig {path} cannot be used: the file is empty or is not a kubeconfig ("),
}


@pytest.mark.parametrize("name", FAULTY_KUBECONFIGS)
def test_a_kubeconfig_that_cannot_be_used_is_named(tmp_path: Path, name: str) -> None:
    content, said = FAULTY_KUBECONFIGS[name]
    path = tmp_path / "config"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ClusterUnavailableError) as caught:
        asyncio.run(connect(path, NODE))
    assert str(caught.value).startswith(said.format(path=path))


@pytest.mark.parametrize("served", ["v1", "v1beta2", "v1beta1"])
def test_device_status_is_applied_to_the_claim_of_that_uid(tmp_path: Path, served: str) -> None:
    server = Server((served,))
    path = f"{GROUP}/{served}/namespaces/ns/resourceclaims/c/status"
    server.answers[path] = {"status": {"devices": [{"device": "d"}]}}
    entry = {"driver": "neuron.aws.com", "pool": NODE, "device": "d"}
    stored = run_scenario(server, tmp_path, lambda api: api.apply_devices("ns", "c", "u-1", [entry]))
    assert stored == {"status": {"devices": [{"device": "d"}]}}
    method, asked, query, body = server.requests[-1]
    assert (method, asked, query) == ("PATCH", path, {"fieldManager": "neuron.aws.com", "force": "true"})
    assert body == {
        "apiVersion": f"resource.k8s.io/{served}",
        "kind": "ResourceClaim",
        "metadata": {"namespace": "ns", "name": "c", "uid": "u-1"},
        "status": {"devices": [entry]},
    }
    assert server.headers[-1]["Content-Type"] == "application/apply-patch+yaml"
    run_scenario(server, tmp_path, lambda api: api.apply_devices("ns", "c", "u-1", [], resource_version="7"))
    assert server.requests[-1][3]["metadata"] == {
        "namespace": "ns",
        "name": "c",
        "uid": "u-1",
        "resourceVersion": "7",
    }


@pytest.mark.parametrize(("code", "reason"), [(404, "NotFound"), (409, "Conflict")])
def test_device_status_of_a_deleted_or_replaced_claim_is_not_applied(tmp_path: Path, code: int, reason: str) -> None:
    server = Server()
    server.answers[f"{GROUP}/v1/namespaces/ns/resourceclaims/c/status"] = answering(lambda: status(code, reason))
    assert run_scenario(server, tmp_path, lambda api: api.apply_devices("ns", "c", "u-1", [])) is None


def test_device_status_that_is_refused_is_an_error(tmp_path: Path) -> None:
    server = Server()
    refusal = answering(lambda: status(403, "Forbidden", "no right"))
    server.answers[f"{GROUP}/v1/namespaces/ns/resourceclaims/c/status"] = refusal
    with pytest.raises(ApiServerError, match="no right"):
        run_scenario(server, tmp_path, lambda api: api.apply_devices("ns", "c", "u-1", []))
