"""Pages of the book whose commands are run as a reader would, and whose output is compared.

A block of `sh` is a script that must succeed. A block of `console` has commands after `$ `, each with its output. `[…]`
stands for any text, also of several lines. Names that Kubernetes generates, ages and times are not compared.
"""

import dataclasses
import os
import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

_FENCE: Final = re.compile(r"^( *)```([a-z]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_HEREDOC: Final = re.compile(r"<<'(\w+)'$.*?^\1$", re.MULTILINE | re.DOTALL)
_SETS: Final = re.compile(r"(?:^|[ ;(])(?:export )?([A-Za-z_]\w*)=|\bfor (\w+) in\b")
_USES: Final = re.compile(r"\$\{?([A-Za-z_]\w*)")
_LEFT_OUT: Final = "[…]"
_GENERATED: Final = re.compile(r"(?<=neuron-)[a-z0-9]{5}\b|(?<=neurons-)[a-z0-9]{5}\b")
_TIME: Final = re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_AGE: Final = re.compile(r"(?<=[\s(])(\d+[smhd])+(?=\s|$)")
_KUBERNETES: Final = re.compile(r"(?<=\s)v1\.\d+\.\d+(?=\s|$)")
_SECONDS: Final = 150
_INTERVAL: Final = 0.2


def tutorials(docs: Path) -> list[Path]:
    """The pages of the tutorials, in the order of the book's contents."""
    contents = (docs / "index.md").read_text()
    return [docs / f"{name}.md" for name in re.findall(r"^tutorials/[a-z-]+$", contents, re.MULTILINE)]


def unset_variables(page: str) -> set[str]:
    """Variables that a page's commands use and no command before sets. Every shell has `PATH`, `HOME` and `PWD`."""
    known, missing = {"PATH", "HOME", "PWD"}, set()
    for step in steps(page):
        script = re.sub(r"'[^']*'", "''", _HEREDOC.sub("", step.script))
        for line in script.splitlines():
            known.update(name for each in _SETS.finditer(line) for name in each.groups() if name)
            missing.update(name for name in _USES.findall(line) if name not in known)
    return missing


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One script or command of a page.

    Attributes:
        script: what bash runs.
        output: what it prints; None for a script, which must succeed.
        line: of the page.
    """

    script: str
    output: str | None
    line: int


def _commands(text: str, line: int) -> Iterator[Step]:
    found: list[tuple[int, list[str]]] = []
    for number, each in enumerate(text.splitlines(), start=line):
        if each.startswith("$ "):
            found.append((number, [each[2:]]))
        else:
            found[-1][1].append(each)
    for number, (command, *output) in found:
        at = next((i for i, each in enumerate((command, *output)) if not each.endswith("\\")), 0)
        lines = [command, *output]
        yield Step("\n".join(lines[: at + 1]), "\n".join(lines[at + 1 :]), number)


def steps(page: str) -> Iterator[Step]:
    """The scripts and commands of a page, in order."""
    for match in _FENCE.finditer(page):
        indent, language, text = match.groups()
        text = re.sub(rf"^{indent}", "", text, flags=re.MULTILINE)
        line = page.count("\n", 0, match.start()) + 2
        if language == "sh":
            yield Step(text, None, line)
        elif language == "console":
            yield from _commands(text, line)


def _plain(text: str) -> list[str]:
    for pattern, word in ((_GENERATED, "xxxxx"), (_TIME, "<time>"), (_AGE, "<age>"), (_KUBERNETES, "<version>")):
        text = pattern.sub(word, text)
    return [" ".join(line.split()) for line in text.strip().splitlines()]


def same(expected: str, printed: str) -> bool:
    """Whether a command printed what the page says."""
    wanted = re.escape("\n".join(_plain(expected))).replace(re.escape(_LEFT_OUT), ".*")
    return re.fullmatch(wanted, "\n".join(_plain(printed)), re.DOTALL) is not None


class Reader:
    """Runs the steps of a page in one directory, as a reader does in one shell."""

    def __init__(self, directory: Path, environment: Mapping[str, str], words: Mapping[str, str] | None = None) -> None:
        """`words`: replacements in scripts, such as of a port that is in use."""
        self._directory = directory
        self._environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "120", **environment}
        self._words = words or {}

    def run(self, step: Step) -> str:
        """What it prints, on both streams.

        Raises:
            AssertionError: a script ended with an error.
        """
        script = step.script
        for word, other in self._words.items():
            script = script.replace(word, other)
        done = subprocess.run(
            ["bash", "-uo", "pipefail", *(("-e",) if step.output is None else ()), "-c", script],
            cwd=self._directory,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        assert step.output is not None or done.returncode == 0, f"line {step.line}: {script}\n{done.stdout}"
        for word, other in self._words.items():
            done.stdout = done.stdout.replace(other, word)
        return done.stdout

    def follow(self, page: str, patience: float = 0) -> None:
        """Run every step.

        Args:
            page: its text.
            patience: seconds for which a command is tried again until it prints what the page says, as by a reader who
                waits a moment.

        Raises:
            AssertionError: one of them prints something else; names the line, what the page says and what was printed.
        """
        for step in steps(page):
            deadline = time.monotonic() + patience
            printed = self.run(step)
            while step.output is not None and not same(step.output, printed):
                assert time.monotonic() < deadline, (
                    f"line {step.line}: $ {step.script}\nThe page has:\n{step.output}\nIt prints:\n{printed}"
                )
                time.sleep(_INTERVAL)
                printed = self.run(step)
