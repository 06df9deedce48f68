"""Log lines of several processes on one pipe."""

import io
import os

import pytest

from webhook.workers.lines import PIPE_BUF, WholeLines


def written(*batches: bytes) -> list[bytes]:
    """What arrived in one piece each: a pipe in packet mode keeps writes apart."""
    reading, writing = os.pipe2(os.O_DIRECT | os.O_NONBLOCK)
    stream = WholeLines(writing)
    for batch in batches:
        assert stream.write(batch) == len(batch)
        stream.flush()
    stream.close()
    os.close(writing)
    with io.FileIO(reading) as pipe:
        return list(iter(lambda: pipe.read(1 << 16), b""))


def test_lines_that_fit_are_written_at_once() -> None:
    assert written(b"one\ntwo\n", b"three\n") == [b"one\ntwo\n", b"three\n"]


def test_batches_are_cut_between_lines() -> None:
    line = b"x" * 999 + b"\n"
    pieces = written(line * 10)
    assert pieces == [line * 4, line * 4, line * 2]


def test_a_line_that_is_too_long_is_written_nevertheless() -> None:
    long = b"y" * (PIPE_BUF + 10) + b"\n"
    assert b"".join(written(b"a\n" + long + b"b\n")) == b"a\n" + long + b"b\n"


def test_nothing_is_nothing() -> None:
    assert written(b"") == []


def test_a_closed_pipe_is_an_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with pytest.raises(BrokenPipeError):
        WholeLines(writing).write(b"line\n")
    os.close(writing)


def test_the_descriptor_stays_open() -> None:
    reading, writing = os.pipe()
    WholeLines(writing).close()
    assert os.write(writing, b"x") == 1
    os.close(reading)
    os.close(writing)
