"""The version of the control plane is the oldest that an API server reported recently."""

import asyncio
import contextlib
from typing import Any

import orjson

from cluster.collections import Watches
from runtime.api_server import StatusError, UnreachableError
from webhook.cluster.kube import KEPT, PAUSE, RETRY, ServerVersion


class Servers:
    """API servers behind one address; each question is answered by the next one, and the last one stays."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    async def request(self, method: str, path: str, timeout: float) -> bytes:  # noqa: ASYNC109
        assert (method, path) == ("GET", "/version")
        assert timeout > 0
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return orjson.dumps({"gitVersion": answer})


class Watching:
    """The watch, the versions that it reported, and how long it slept."""

    def __init__(self, *answers: Any) -> None:
        self.now = 0.0
        self.told: list[str] = []
        self.slept: list[float] = []
        self.watch = ServerVersion(Servers(*answers), self.told.append, lambda: self.now, self.sleep)  # type: ignore[arg-type]

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if len(self.slept) == 3:
            raise asyncio.CancelledError

    def ask(self, after: float = 0.0) -> str:
        self.now += after
        asyncio.run(self.watch.ask())
        assert self.watch.asked.is_set()
        return self.told[-1] if self.told else "nothing"


def test_during_an_upgrade_the_older_version_counts_until_it_was_not_seen_for_an_hour() -> None:
    watching = Watching("v1.35.6", "v1.36.2", "v1.35.6", "v1.36.2")
    assert watching.ask() == "v1.35.6"
    assert watching.ask(PAUSE) == "v1.35.6"
    assert watching.ask(PAUSE) == "v1.35.6"
    assert watching.ask(KEPT) == "v1.35.6"
    assert watching.ask(1.0) == "v1.36.2"


def test_an_older_version_counts_at_once() -> None:
    watching = Watching("v1.36.2", "v1.35.6")
    assert [watching.ask(), watching.ask(PAUSE)] == ["v1.36.2", "v1.35.6"]


def test_an_invalid_version_is_unknown() -> None:
    assert Watching("main").ask() == ""


def test_the_known_version_stays_if_the_api_server_does_not_answer() -> None:
    refused = StatusError.parse(500, b"")
    watching = Watching(UnreachableError("https://api", "refused"), "v1.36.2", refused)
    assert watching.ask() == "nothing"
    assert watching.ask() == "v1.36.2"
    assert watching.ask(2 * KEPT) == "v1.36.2"


def test_an_unknown_version_is_requested_again_after_a_shorter_pause() -> None:
    watching = Watching(StatusError.parse(403, b""), "v1.36.2")
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(watching.watch.run())
    assert watching.slept == [RETRY, PAUSE, PAUSE]


def test_the_view_of_the_cluster_changes_with_the_version() -> None:
    view = Watches(Servers("")).store  # type: ignore[arg-type]
    before = view.version
    assert view.kubernetes_version() == ""
    view.set_kubernetes_version("v1.36.2")
    view.set_kubernetes_version("v1.36.2")
    assert (view.kubernetes_version(), view.version) == ("v1.36.2", before + 1)
