"""The Node over real HTTP: it is followed by a watch of its own, labelled by a merge patch, and reported about."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from kubeletplugin.api_store import ApiStore
from runtime.api_server import ApiServerError
from tests.kubeletplugin.fakes import NODE
from tests.kubeletplugin.test_api_store import GROUP, Server, answering, run_scenario, status

NODES = "/api/v1/nodes"
SELECTOR = {"fieldSelector": f"metadata.name={NODE}"}


def node_of_version(version: str) -> dict[str, Any]:
    return {"metadata": {"name": NODE, "resourceVersion": version}}


def following(*events: tuple[str, dict[str, Any]]) -> Server:
    server = Server()

    async def answer(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            return web.json_response({"items": [node_of_version("4")], "metadata": {"resourceVersion": "9"}})
        lines = "".join(json.dumps({"type": kind, "object": body}) + "\n" for kind, body in events)
        return web.Response(text=lines)

    server.answers[NODES] = answer
    return server


async def followed(api: ApiStore) -> list[str]:
    return [body["metadata"]["resourceVersion"] async for body in api.follow()]


def test_the_node_is_listed_and_then_watched_alone(tmp_path: Path) -> None:
    server = following(
        ("MODIFIED", node_of_version("10")),
        ("BOOKMARK", node_of_version("11")),
        ("DELETED", node_of_version("12")),
        ("ADDED", node_of_version("13")),
    )
    assert run_scenario(server, tmp_path, followed) == ["4", "10", "13"]
    (_, _, listed, _), (_, _, watched, _) = server.requests
    assert listed == SELECTOR
    assert watched.items() >= (SELECTOR | {"watch": "true", "resourceVersion": "9"}).items()


def test_an_expired_watch_is_an_error(tmp_path: Path) -> None:
    expired = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
    with pytest.raises(ApiServerError, match="HTTP 410, 'too old resource version"):
        run_scenario(following(("ERROR", expired)), tmp_path, followed)


def test_the_next_watch_resumes_and_an_expired_version_is_followed_by_a_list(tmp_path: Path) -> None:
    expired = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
    server = following(("MODIFIED", node_of_version("10")), ("BOOKMARK", node_of_version("11")))

    async def scenario(api: ApiStore) -> list[str]:
        seen = [body["metadata"]["resourceVersion"] for _ in range(2) async for body in api.follow()]
        for faulty in (True, False):
            server.answers[NODES] = following(*((("ERROR", expired),) if faulty else ())).answers[NODES]
            with pytest.raises(ApiServerError, match="410") if faulty else contextlib.nullcontext():
                seen += [body["metadata"]["resourceVersion"] async for body in api.follow()]
        return seen

    assert run_scenario(server, tmp_path, scenario) == ["4", "10", "10", "4"]
    asked = [query.get("resourceVersion", "list") for _, _, query, _ in server.requests]
    assert asked == ["list", "9", "11", "11", "list", "9"]


def test_a_broken_watch_is_an_error(tmp_path: Path) -> None:
    server = following()
    listing = server.answers[NODES]

    async def broken(request: web.Request) -> web.StreamResponse:
        return web.Response(text="{\n") if "watch" in request.query else await listing(request)

    server.answers[NODES] = broken
    with pytest.raises(ApiServerError, match="the answer is not the API's JSON: the line is no event"):
        run_scenario(server, tmp_path, followed)


def test_a_list_without_items_is_an_error(tmp_path: Path) -> None:
    server = Server()
    server.answers[NODES] = {"metadata": {}}
    with pytest.raises(ApiServerError, match=r"the answer is not the API's JSON: .* missing required field `items`"):
        run_scenario(server, tmp_path, followed)


def test_labels_are_a_merge_patch(tmp_path: Path) -> None:
    server = Server()
    server.answers[f"PATCH {NODES}/{NODE}"] = node_of_version("5")

    async def scenario(api: ApiStore) -> Any:
        return await api.label({"a": "1", "b": None})

    assert run_scenario(server, tmp_path, scenario) == node_of_version("5")
    [(_, _, _, body)] = server.requests
    assert body == {"metadata": {"labels": {"a": "1", "b": None}}}
    assert server.headers[0]["Content-Type"] == "application/merge-patch+json"


def test_events_about_nodes_are_created_in_the_default_namespace(tmp_path: Path) -> None:
    server = Server()
    server.answers["POST /api/v1/namespaces/default/events"] = {}
    run_scenario(server, tmp_path, lambda api: api.report({"reason": "X"}))
    assert server.requests[0][3] == {"reason": "X"}


# --- taints: whether the API server keeps them ------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
@pytest.mark.parametrize("kept", [True, False])
def test_a_dry_run_shows_whether_taints_are_kept(tmp_path: Path, version: str, *, kept: bool) -> None:
    server = Server((version,))
    path = f"{GROUP}/{version}/resourceslices"

    async def create(request: web.Request) -> web.Response:
        body = await request.json()
        for device in body["spec"]["devices"]:
            if not kept:
                device.get("basic", device).pop("taints")
        return web.json_response(body)

    server.answers[f"POST {path}"] = create
    assert run_scenario(server, tmp_path, lambda api: api.keeps_taints()) is kept
    _, (method, asked, query, body) = server.requests
    assert (method, asked, query) == ("POST", path, {"dryRun": "All"}), "nothing is stored"
    assert (body["spec"]["nodeName"], body["spec"]["driver"]) == (NODE, "neuron.aws.com")


def test_a_dry_run_that_is_refused_counts_as_no_taints(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    server.answers[f"POST {GROUP}/v1/resourceslices"] = answering(lambda: status(400, "BadRequest", "no dry runs"))
    assert run_scenario(server, tmp_path, lambda api: api.keeps_taints()) is False
    assert "the API server refuses a dry run" in caplog.messages


def test_a_dry_run_without_an_answer_is_tried_again_later(tmp_path: Path) -> None:
    server = Server()
    server.answers[f"POST {GROUP}/v1/resourceslices"] = answering(lambda: status(503, "ServiceUnavailable", "later"))
    with pytest.raises(ApiServerError, match="503"):
        run_scenario(server, tmp_path, lambda api: api.keeps_taints())
