"""What the webhook logged and wrote: by workload, with the number of pods."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from commands.report import inputs
from commands.report.model import Shadowed
from tests.support.reports import deployment, report


def line(**fields: Any) -> bytes:
    whole = {
        "ts": "2026-11-22T09:00:00.000Z",
        "level": "info",
        "event": "decision",
        "uid": "1",
        "kind": "Pod",
        "decision": "shadowed",
        "reason": "would-be-converted",
        "dry_run": False,
        "findings": ["NEU208"],
        "namespace": "team-a",
        "generateName": "train-5d8f7-",
        **fields,
    }
    return json.dumps(whole).encode()


def test_equal_lines_are_one_entry() -> None:
    denied = line(reason="would-be-denied", findings=["NEU208", "NEU105", "NEU105"])
    assert inputs.of_log([line(), line(), denied]) == (
        Shadowed("team-a", "train-5d8f7-", "would-be-converted", (), 2),
        Shadowed("team-a", "train-5d8f7-", "would-be-denied", ("NEU105",), 1),
    )


def test_other_lines_are_ignored() -> None:
    others = [line(decision="converted"), line(dry_run=True), line(event="started"), b"not json", b'"shadowed"', b""]
    assert inputs.of_log(others) == ()


@given(st.lists(st.binary(max_size=60)))
def test_any_log_content_is_read_without_an_error(lines: list[bytes]) -> None:
    inputs.of_log([*lines, *(b'"shadowed"' + each for each in lines)])


def test_events_have_the_message() -> None:
    event = {
        "metadata": {"namespace": "team-a", "name": "neuron-dra.1"},
        "regarding": {"kind": "ReplicaSet", "name": "train-5d8f7"},
        "note": (note := "NEU105: seven; NEU110: none; NEU999: Fix: run it; xNEU101: no"),
        "series": {"count": 4},
    }
    assert inputs.of_events([event, {}]) == (
        Shadowed("team-a", "ReplicaSet train-5d8f7", "denied", ("NEU105", "NEU110"), 4, "Event neuron-dra.1", note),
        Shadowed("", "'' ''", "denied", (), 1, "Event ''", ""),
    )


def test_pods_are_named_by_their_workload() -> None:
    seen = (
        Shadowed("team-a", "train-5d8f7-", "would-be-converted", (), 2),
        Shadowed("team-a", "train-9abcd-", "would-be-converted", (), 3),
        Shadowed("team-a", "train-big-0", "would-be-converted", (), 1),
        Shadowed("team-b", "train-5d8f7-", "would-be-converted", (), 1),
    )
    made = report(deployment("train"), deployment("train-big"), shadowed=seen)
    assert [(each.namespace, each.name, each.pods) for each in made.shadowed] == [
        ("team-a", "Deployment train", 5),
        ("team-a", "Deployment train-big", 1),
        ("team-b", "train-5d8f7-", 1),
    ]
