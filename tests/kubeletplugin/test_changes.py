"""How the sessions of many nodes with the API server are spread over time."""

import asyncio
import random
from collections import Counter

import pytest

from kubeletplugin.changes import repeat
from kubeletplugin.ports import WAITS
from runtime.api_server import ApiServerError, StatusError, UnreachableError
from tests.kubeletplugin.fakes import FakeClock

NODES = 500
LONG = 60.0


class EndedError(Exception):
    """The node has begun its next session, and the test ends."""


def next_session(seed: int, lasted: float, error: ApiServerError | None) -> float:
    """Seconds between the end of a node's first session and the beginning of its next one."""
    clock, begun = FakeClock(), []
    jitter = random.Random(seed).uniform  # noqa: S311 - a test

    async def session() -> None:
        begun.append(clock.monotonic())
        if len(begun) == 2:
            raise EndedError
        clock.time += lasted
        if error:
            raise error

    async def failed(_: ApiServerError) -> None:
        pass

    with pytest.raises(EndedError):
        asyncio.run(repeat(session, failed, (1.0, 60.0), LONG, clock, jitter))
    return begun[1] - begun[0] - lasted


@pytest.mark.parametrize(
    ("lasted", "error", "within"),
    [
        pytest.param(LONG + 1, None, WAITS.spread, id="server-ended-the-watch"),
        pytest.param(LONG + 1, UnreachableError("reset"), WAITS.spread, id="connection-broke"),
        pytest.param(0.1, UnreachableError("refused"), 1.0, id="server-is-away"),
    ],
)
def test_nodes_whose_sessions_end_together_do_not_come_back_together(
    lasted: float, error: ApiServerError | None, within: float
) -> None:
    pauses = [next_session(seed, lasted, error) for seed in range(NODES)]
    assert max(pauses) <= within
    busiest = Counter(int(pause / within * 20) for pause in pauses).most_common(1)[0][1]
    assert busiest < NODES / 4, f"{busiest} of {NODES} nodes within a twentieth of {within} s"


def test_a_node_waits_as_long_as_the_server_asks_for() -> None:
    assert next_session(1, LONG + 1, StatusError(429, "busy", "TooManyRequests", retry_after=9.0)) == 9.0
