"""docs/architecture.md tells in which order a review enters the files, and in how many files other walks are."""

import json
import re
import subprocess
import sys

import pytest

from tests.architecture.walks import ROOT, WALKS, Walk

TEXT = (ROOT / "docs" / "architecture.md").read_text()
ROW = re.compile(r"^\| `([a-z_/]+/)` \| ((?:`\w+`(?:, )?)+) \|", re.MULTILINE)
BOUND = re.compile(
    r"^\| (?:a review of the first |`)(pod|[a-z]+ (?:-f|test))\b.*? \| \d+ \| \d+ \| (\d+) \| (\d+) \|$", re.MULTILINE
)


@pytest.fixture(scope="module")
def walks() -> dict[str, Walk]:
    """Recorded in a new process: what other tests have decided is remembered in this one."""
    command = [sys.executable, "-m", "tests.architecture.walks", "json"]
    found = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout)
    return {name: Walk(tuple(each["files"]), each["switches"]) for name, each in found.items()}


def test_the_table_has_the_files_of_a_review_in_the_order_in_which_they_are_entered(walks: dict[str, Walk]) -> None:
    told = [f"{folder}{module}.py" for folder, modules in ROW.findall(TEXT) for module in re.findall(r"\w+", modules)]
    assert told == list(walks["pod"].files)


def test_every_walk_has_a_row() -> None:
    assert [name for name, _, _ in BOUND.findall(TEXT)] == list(WALKS)


@pytest.mark.parametrize(("name", "files", "switches"), BOUND.findall(TEXT))
def test_a_walk_enters_no_more_files_than_the_table_says(
    walks: dict[str, Walk], name: str, files: str, switches: str
) -> None:
    assert len(walks[name].files) <= int(files), sorted(walks[name].files)
    assert walks[name].switches <= int(switches)
