"""Outcomes of disturbances, in one form for all tests: what was sent meanwhile, what failed, what was lost.

A test reports with the fixture `report_fault`. `--faults FILE` runs disturbances at full length and size, and writes
the table between two comments of a page; without it they are short.
"""

import dataclasses
import json
import re
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

BEGIN: Final = "<!-- faults: written by `make faults` -->"
END: Final = "<!-- end of faults -->"

DISTURBANCES: Final = (
    "no disturbance",
    "API server gone for 60 s",
    "watches cut, and expired when they resume (410)",
    "etcd compacted",
    "template deleted every 0.1 s",
    "one of two webhook replicas killed",
    "all webhook replicas killed, and started again",
    "one of two webhook replicas frozen (SIGSTOP)",
    "rolling restart of two webhook replicas",
    "clock of the webhook 100 days ahead, then 100 days behind",
    "serving certificate expired",
    "10,000 pods at once",
    "driver ended (SIGTERM) and started again",
    "driver killed, and started again",
    "kubelet restarted",
    "clock of the driver 100 days ahead, then 100 days behind",
    "driver killed before, in and after every write",
    "disk full at every write of checkpoint and CDI spec",
    "memory: 64 reviews of 3 MiB at once",
    "malformed bodies",
    "200 clients that send one byte at a time (slow-loris)",
    "1,000 idle connections",
    "a policy that loops",
)
"""All of them, in the order of the table."""


@dataclasses.dataclass(frozen=True, slots=True)
class Attempt:
    """One review, pod or claim during a disturbance.

    Attributes:
        began: monotonic seconds.
        seconds: until it was answered.
        failed: whether the answer was an error, or none.
        lost: whether it was answered, and is not as it should be: unconverted, without template, never running.
    """

    began: float
    seconds: float
    failed: bool = False
    lost: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """A row of the table.

    Attributes:
        disturbance: one of `DISTURBANCES`.
        sent: what was sent, in the plural: reviews, pods, claims.
        requests: how many.
        failed: how many of them got an error, or no answer.
        lost: how many were answered, and are not as they should be.
        recovered: seconds from the end of the disturbance to the end of the last failure; 0 without a failure then.
    """

    disturbance: str
    sent: str
    requests: int
    failed: int
    lost: int
    recovered: float

    def __post_init__(self) -> None:
        if self.disturbance not in DISTURBANCES:
            raise ValueError(f"{self.disturbance!r} is not among DISTURBANCES of tests/support/faults.py")

    @classmethod
    def of(cls, disturbance: str, sent: str, attempts: Iterable[Attempt], over: float) -> "Outcome":
        """Count attempts; `over` is the end of the disturbance, in monotonic seconds."""
        found = list(attempts)
        wrong = [each for each in found if each.failed or each.lost]
        last = max((each.began + each.seconds for each in wrong), default=over)
        failed, lost = sum(each.failed for each in found), sum(each.lost for each in found)
        return cls(disturbance, sent, len(found), failed, lost, max(0.0, last - over))


class Attempts:
    """Collects attempts of several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: list[Attempt] = []

    def add(self, began: float, *, failed: bool = False, lost: bool = False) -> None:
        """Note an attempt that ends now."""
        with self._lock:
            self._found.append(Attempt(began, time.monotonic() - began, failed, lost))

    def all(self) -> list[Attempt]:
        """Those so far."""
        with self._lock:
            return list(self._found)


def table(outcomes: Iterable[Outcome]) -> str:
    """The table, in the order of `DISTURBANCES`."""
    rows = sorted(merged(outcomes), key=lambda each: DISTURBANCES.index(each.disturbance))
    lines = [
        "| disturbance | requests | failed | lost | recovered in |",
        "|---|---|---|---|---|",
        *(
            f"| {each.disturbance} | {each.requests:,} {each.sent} | {each.failed:,} | {each.lost:,} | "
            f"{each.recovered:.1f} s |"
            for each in rows
        ),
    ]
    return "\n".join(lines)


def write(page: Path, outcomes: Sequence[Outcome], machine: str) -> None:
    """Put the table, and the machine that it was measured on, between the two comments of a page.

    Raises:
        ValueError: the page does not have the comments.
    """
    text = page.read_text()
    pattern = re.compile(rf"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    if not pattern.search(text):
        raise ValueError(f"{page} has no place for the table: add the lines {BEGIN} and {END}")
    content = f"{BEGIN}\n\n{machine}\n\n{table(outcomes)}\n\n{END}"
    page.write_text(pattern.sub(lambda _: content, text))


def remember(store: Path, outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Add outcomes to those of earlier runs in a JSON file, in place of older ones; returns all.

    So a disturbance that failed can be repeated alone.
    """
    found = {each.disturbance: each for each in _stored(store)}
    found |= {each.disturbance: each for each in merged(outcomes)}
    store.parent.mkdir(parents=True, exist_ok=True)
    store.write_text(json.dumps([dataclasses.asdict(each) for each in found.values()], indent=1))
    return list(found.values())


def _stored(store: Path) -> list[Outcome]:
    content: list[dict[str, Any]] = json.loads(store.read_text()) if store.exists() else []
    return [Outcome(**each) for each in content if each["disturbance"] in DISTURBANCES]


def read(page: Path) -> list[str]:
    """The disturbances in a page's table."""
    found = re.search(rf"{re.escape(BEGIN)}(.*?){re.escape(END)}", page.read_text(), re.DOTALL)
    return re.findall(r"^\| ([^|]+) \| [\d,]+ \w+ \|", found[1], re.MULTILINE) if found else []


def from_properties(properties: Iterable[tuple[str, Any]]) -> list[Outcome]:
    """Outcomes among the properties that a test's report carries."""
    return [Outcome(**value) for name, value in properties if name == "fault"]


def merged(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """One outcome for each disturbance: sums, and the longest recovery."""
    found: dict[str, Outcome] = {}
    for each in outcomes:
        before = found.get(each.disturbance)
        if before is not None:
            each = Outcome(  # noqa: PLW2901
                each.disturbance,
                each.sent,
                before.requests + each.requests,
                before.failed + each.failed,
                before.lost + each.lost,
                max(before.recovered, each.recovered),
            )
        found[each.disturbance] = each
    return list(found.values())
