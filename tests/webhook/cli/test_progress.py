"""The counter on standard error: only on a terminal, not too often, and gone at the end."""

import io

import pytest

from webhook.cli.progress import Counter


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_it_counts_on_a_terminal_and_erases_itself() -> None:
    stream, clock = Terminal(), Clock()
    with Counter(stream, clock) as counter:
        counter.show("assessed", 1, 10)
        assert stream.getvalue() == ""
        clock.now = 1.0
        counter.show("assessed", 2, 10)
        counter.show("assessed", 3, 10)
        clock.now = 2.0
        counter.show("read pods:", 7)
    assert stream.getvalue() == "\r\x1b[Kassessed 2 of 10\r\x1b[Kread pods: 7\r\x1b[K"


def test_elsewhere_it_writes_only_lines() -> None:
    stream, clock = io.StringIO(), Clock()
    with Counter(stream, clock) as counter:
        clock.now = 9.0
        counter.show("assessed", 2, 10)
        counter.say("a.yaml: no such file.")
    assert stream.getvalue() == "a.yaml: no such file.\n"


def test_a_line_replaces_the_counter() -> None:
    stream, clock = Terminal(), Clock()
    with Counter(stream, clock) as counter:
        clock.now = 1.0
        counter.show("read", 5)
        counter.say("broken")
    assert stream.getvalue() == "\r\x1b[Kread 5\r\x1b[Kbroken\n"


@pytest.mark.parametrize("stream", [None, "closed"])
def test_a_stream_that_is_not_there_does_not_stop_the_command(stream: str | None) -> None:
    terminal, clock = Terminal(), Clock()
    with Counter(None if stream is None else terminal, clock) as counter:
        clock.now = 1.0
        terminal.write = _fail  # type: ignore[method-assign]
        counter.show("read", 5)
        counter.say("more")


def _fail(_: str) -> int:
    raise BrokenPipeError
