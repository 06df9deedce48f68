"""What is printed cannot control a terminal, whichever code prints it."""

import io
import json
import logging
import subprocess
import sys
import unicodedata
from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime import console
from runtime.logs import JSONFormatter, TextFormatter
from runtime.text import cited, named

ATTACKS = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\u2028\x7f\r\b\x85\udc80\t\u200b"
texts = st.text(st.one_of(st.sampled_from(ATTACKS + "\n'\\\"a "), st.characters()), max_size=40)


class Terminal(io.TextIOWrapper):
    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", newline="\n")

    def isatty(self) -> bool:
        return True

    @property
    def shown(self) -> str:
        self.flush()
        assert isinstance(self.buffer, io.BytesIO)
        return self.buffer.getvalue().decode()


def controls(text: str) -> set[str]:
    """Characters that a terminal may obey, without the line feed: categories Cc, Cf, Cs, Co, Zl, Zp."""
    return {each for each in text if unicodedata.category(each) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")} - {"\n"}


@given(texts)
def test_text_is_printed_without_control_characters(text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", out := Terminal())
        patch.setattr(sys, "stderr", err := Terminal())
        console.write([text])
        console.write_exact([text])
        console.say(text)
    assert not controls(out.shown)
    assert not controls(err.shown)
    assert out.shown.count("\n") == 2 * text.count("\n")


@given(texts.map(lambda text: text.replace("\t", "")))
def test_output_of_other_code_is_escaped(text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", out := Terminal())
        patch.setattr(sys, "stderr", err := Terminal())
        with console.guarded():
            print(text)  # noqa: T201
            click.echo(text)
            click.echo(text, err=True)
            sys.stderr.writelines([text])
        assert not isinstance(sys.stdout, console.Escaping)
    assert not controls(out.shown)
    assert not controls(err.shown)


@given(st.dictionaries(texts, texts))
def test_json_keeps_its_meaning(value: dict[str, str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", out := Terminal())
        console.write([json.dumps(value, ensure_ascii=True), "\n"])
        printable = {key: each for key, each in value.items() if not any(map("\udc80".__eq__, key + each))}
        try:
            raw = json.dumps(printable, ensure_ascii=False)
            raw.encode()
        except UnicodeEncodeError:
            return
        console.write([raw])
    first, second = out.shown.split("\n", 1)
    assert json.loads(first) == value
    assert json.loads(second) == printable


@given(texts)
def test_only_our_own_colours_reach_a_terminal(text: str) -> None:
    shown = console.displayed(f"{text}{console.painted(text, 31)}{text}")
    assert shown.count("\x1b") == 2
    assert not controls(shown.replace("\x1b[31m", "", 1).replace("\x1b[0m", "", 1))


def test_a_pipe_gets_manifests_byte_by_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    monkeypatch.setattr(sys, "stdout", out)
    console.write_exact(["a: 'x\u202ey'\r\n", "\tb\n"])
    assert isinstance(out.buffer, io.BytesIO)
    assert out.buffer.getvalue() == "a: 'x\u202ey'\r\n\tb\n".encode()


@given(texts, texts)
def test_the_end_of_a_quote_is_unambiguous(text: str, after: str) -> None:
    shown = cited(text)
    assert not controls(shown)
    assert "\n" not in shown
    assert shown[0] == shown[-1]
    assert shown[0] in "'\""
    # A reader who knows backslashes finds the end where we put it, whatever follows.
    whole, place = shown + after, 1
    while whole[place] != shown[0]:
        place += 2 if whole[place] == "\\" else 1
    assert place == len(shown) - 1


@pytest.mark.parametrize(
    "name", ["train-0", "ip-10-0-0-1.ec2.internal", "trn2.48xlarge", "2026-03-01T12:00:00.000000Z"]
)
def test_a_name_of_one_word_is_not_quoted(name: str) -> None:
    assert named(name) == name


@pytest.mark.parametrize("name", ["", "a b", "Fix: run it", "a\nb", "a;rm", "`a`", "-a", "é", "a" * 254])
def test_anything_else_is_quoted(name: str) -> None:
    assert named(name)[0] == "'"


@given(texts, texts)
@pytest.mark.parametrize("formatter", [JSONFormatter(), TextFormatter()], ids=["json", "text"])
def test_a_record_is_one_line(formatter: logging.Formatter, message: str, field: str) -> None:
    error = (ValueError, ValueError(message), None)
    record = logging.getLogger("x").makeRecord("x", 20, "f", 1, message, (), error, extra={"field": field})
    line = formatter.format(record)
    assert not controls(line)
    assert "\n" not in line


@pytest.mark.parametrize(
    "statement",
    [
        "import sys\nsys.stdout.write('x')",
        "from sys import stderr\nstderr.write('x')",
        "import os\nos.write(1, b'x')",
        "import click\nclick.echo('x')",
        "import click as c\nc.secho('x')",
        "print('x')",
        "from pprint import pprint\npprint('x')",
    ],
)
def test_lint_refuses_another_way_to_print(statement: str) -> None:
    root = Path(__file__).parents[2]
    command = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--select",
        "T20,TID251",
        "--stdin-filename",
        "commands/cli/x.py",
        "-",
    ]
    done = subprocess.run(command, input=statement, cwd=root, text=True, capture_output=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
