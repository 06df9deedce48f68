import io
import sys

import pytest

from commands.cli.streams import Counter


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    now = [0.0]
    counter = Counter("documents", lambda: now[0])
    counter.phase("converted")
    for _ in range(1500):
        now[0] += 0.001
        counter.step()
    counter.say("a message")
    counter.clear()
    text = terminal.getvalue()
    shown = [each for each in text.split("\r\x1b[K") if each]
    assert shown[0] == "512 documents converted"
    assert 5 < len(shown) < 15
    assert shown[-1] == "a message\n"


def test_short_work_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    counter = Counter("documents", lambda: 0.0)
    for _ in range(1000):
        counter.step()
    counter.clear()
    assert terminal.getvalue() == ""


def test_a_file_gets_no_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", log := io.StringIO())
    now = iter(range(10_000))
    counter = Counter("documents", lambda: float(next(now)))
    for _ in range(1000):
        counter.step()
    counter.say("a message")
    assert log.getvalue() == "a message\n"
