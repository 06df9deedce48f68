"""Time-outs of request bodies, with a clock and a client that the test controls."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest
from starlette.types import Message

from webhook.edge.bodies import BodyReader, BodyTooLargeError, BodyTooSlowError, ClientGoneError, TimeOuts


def receiving(*messages: Message) -> Callable[[], Awaitable[Message]]:
    """A client that sends these messages and then stops."""
    waiting = list(messages)

    async def receive() -> Message:
        if not waiting:
            await asyncio.Event().wait()
        return waiting.pop(0)

    return receive


def piece(body: bytes, *, more: bool) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}


GONE: Message = {"type": "http.disconnect"}


@pytest.mark.parametrize(
    "messages",
    [
        pytest.param([piece(b"abcd", more=False)], id="whole"),
        pytest.param([piece(b"ab", more=True), piece(b"cd", more=False)], id="two"),
        pytest.param([piece(b"", more=True), piece(b"abcd", more=True), piece(b"", more=False)], id="empty-pieces"),
        pytest.param([{"type": "http.request", "body": b"abcd"}], id="defaults"),
    ],
)
def test_bodies_are_put_together(messages: list[Message]) -> None:
    assert asyncio.run(BodyReader(4, 1.0).read(receiving(*messages))) == b"abcd"


@pytest.mark.parametrize(
    ("messages", "unread"),
    [
        pytest.param([piece(b"abcde", more=False)], False, id="whole"),
        pytest.param([piece(b"ab", more=True), piece(b"cde", more=False)], False, id="last-piece"),
        pytest.param([piece(b"abcde", more=True)], True, id="first-of-many"),
    ],
)
def test_reading_stops_at_the_body_limit(messages: list[Message], unread: bool) -> None:
    with pytest.raises(BodyTooLargeError) as error:
        asyncio.run(BodyReader(4, 1.0).read(receiving(*messages)))
    assert (error.value.limit, error.value.unread) == (4, unread)


@pytest.mark.parametrize("messages", [[GONE], [piece(b"a", more=True), GONE]], ids=["at-once", "halfway"])
def test_a_client_that_disconnects_is_an_error(messages: list[Message]) -> None:
    with pytest.raises(ClientGoneError):
        asyncio.run(BodyReader(4, 1.0).read(receiving(*messages)))


def test_the_rest_of_a_body_is_discarded_until_it_ends() -> None:
    receive = receiving(piece(b"a" * 100, more=True), piece(b"b", more=False), piece(b"next", more=False))
    asyncio.run(BodyReader(4, 1.0).discard(receive))
    assert asyncio.run(BodyReader(4, 1.0).read(receive)) == b"next"


def test_discarding_ends_after_the_time_out() -> None:
    asyncio.run(asyncio.wait_for(BodyReader(4, 0.02).discard(receiving(piece(b"a", more=True))), 60))


def test_every_wait_has_its_own_deadline() -> None:
    """Three requests come 30 ms apart, the second is quick; the others are given up in the order they came."""

    async def scenario() -> list[str]:
        patience = TimeOuts(0.5)
        order = []

        async def one(name: str, seconds: float) -> None:
            try:
                await patience.wait(asyncio.sleep(seconds))
                order.append(f"{name} done")
            except BodyTooSlowError as error:
                order.append(f"{name} slow after {error.seconds} s")

        async with asyncio.TaskGroup() as group:
            for name, seconds in (("a", 60), ("b", 0), ("c", 60)):
                group.create_task(one(name, seconds))
                await asyncio.sleep(0.03)
        return order

    assert asyncio.run(asyncio.wait_for(scenario(), 60)) == ["b done", "a slow after 0.5 s", "c slow after 0.5 s"]


def test_a_task_continues_after_its_time_out_was_handled() -> None:
    async def scenario() -> str:
        patience = TimeOuts(0.02)
        with contextlib.suppress(BodyTooSlowError):
            await patience.wait(asyncio.sleep(60))
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        return await patience.wait(asyncio.sleep(0, "still here"))

    assert asyncio.run(asyncio.wait_for(scenario(), 60)) == "still here"


def test_a_cancellation_from_outside_is_raised() -> None:
    async def scenario() -> None:
        task = asyncio.create_task(TimeOuts(60).wait(asyncio.sleep(60)))
        await asyncio.sleep(0)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(asyncio.wait_for(scenario(), 60))


def test_quick_requests_share_one_timer() -> None:
    async def scenario() -> int:
        patience = TimeOuts(60)
        loop = asyncio.get_running_loop()
        armed = 0
        call_later = loop.call_later

        def counting(*args: object) -> asyncio.TimerHandle:
            nonlocal armed
            armed += 1
            return call_later(*args)  # type: ignore[arg-type]

        loop.call_later = counting  # type: ignore[method-assign, assignment]
        for _ in range(100):
            await patience.wait(asyncio.sleep(0))
        return armed

    assert asyncio.run(scenario()) == 1
