"""How outcomes become the table of the documentation."""

from pathlib import Path

import pytest

from tests.deploy.charts import ROOT
from tests.support.faults import BEGIN, DISTURBANCES, END, Attempt, Attempts, Outcome, read, remember, table, write

PAGE = ROOT / "docs" / "benchmarks.md"
NOTHING, GONE = DISTURBANCES[:2]


def test_failures_after_the_end_of_the_disturbance_count_as_recovery_time() -> None:
    attempts = [
        Attempt(0.0, 0.5),
        Attempt(1.0, 0.5, failed=True),
        Attempt(2.0, 0.25, lost=True),
        Attempt(3.0, 0.5),
    ]
    assert Outcome.of(GONE, "reviews", attempts, over=1.25) == Outcome(GONE, "reviews", 4, 1, 1, 1.0)
    assert Outcome.of(GONE, "reviews", attempts, over=9.0).recovered == 0
    assert Outcome.of(GONE, "reviews", [], over=9.0) == Outcome(GONE, "reviews", 0, 0, 0, 0)


def test_attempts_of_threads_are_collected() -> None:
    attempts = Attempts()
    attempts.add(0.0, lost=True)
    [found] = attempts.all()
    assert (found.failed, found.lost) == (False, True)
    assert found.seconds > 0


def test_only_the_table_of_a_page_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    outcomes = [Outcome(GONE, "reviews", 12345, 3, 0, 1.25), Outcome(NOTHING, "pods", 7, 0, 0, 0)]
    write(page, outcomes, "On a machine:")
    assert page.read_text() == f"before\n{BEGIN}\n\nOn a machine:\n\n{table(outcomes)}\n\n{END}\nafter\n"
    assert read(page) == [NOTHING, GONE]
    assert f"| {GONE} | 12,345 reviews | 3 | 0 | 1.2 s |" in page.read_text()


def test_a_disturbance_can_be_repeated_alone(tmp_path: Path) -> None:
    store = tmp_path / "build" / "faults.json"
    first = [Outcome(GONE, "reviews", 5, 3, 0, 1.25), Outcome(NOTHING, "pods", 7, 0, 0, 0)]
    assert remember(store, first) == first
    parts = [Outcome(GONE, "reviews", 5, 1, 0, 1.0), Outcome(GONE, "reviews", 6, 0, 0, 2.0)]
    assert remember(store, parts) == [Outcome(GONE, "reviews", 11, 1, 0, 2.0), first[1]]
    store.write_text(store.read_text().replace(NOTHING, "one that is no longer in the list"))
    assert remember(store, []) == [Outcome(GONE, "reviews", 11, 1, 0, 2.0)]


def test_a_page_without_a_table_marker_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("text")
    with pytest.raises(ValueError, match=r"page\.md has no place for the table: add the lines"):
        write(page, [], "")


def test_an_unknown_disturbance_is_refused() -> None:
    with pytest.raises(ValueError, match="'fire' is not among DISTURBANCES"):
        Outcome("fire", "reviews", 1, 0, 0, 0)


def test_the_documentation_has_every_disturbance() -> None:
    assert read(PAGE) == list(DISTURBANCES), "run `make faults`"
