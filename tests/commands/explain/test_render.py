"""Text for terminals: colour, width, encodings, and what tenants put in names."""

import dataclasses
import weakref
from collections.abc import Iterator

from commands.explain.explanation import Diagnosis, Explanation, PodState, Quote
from runtime.console import Style, displayed
from tests.commands.explain.rendered import as_text
from tests.support.emulated import EmulatedCluster
from tests.support.explaining import explained, legacy_pod, live


class _Referred(Explanation):
    """With weak references."""


def explanation(name: str = "train") -> Explanation:
    cluster = EmulatedCluster()
    cluster.node("a")
    cluster.node("b")
    cluster.claim("big", "b", range(16))
    [found] = explained(legacy_pod(name=name), cluster=live(cluster))
    return found


def test_colour_marks_what_fits_and_what_does_not() -> None:
    text = displayed(as_text([explanation()], Style(colour=True)))
    assert "\x1b[32m+\x1b[0m a (trn2.48xlarge)" in text
    assert "\x1b[31m-\x1b[0m b: 0 of 16 devices free" in text
    assert "\x1b[32mconverted\x1b[0m" in text
    assert "\x1b" not in as_text([explanation()], Style())


def test_lines_are_at_most_as_wide_as_the_terminal() -> None:
    text = as_text([explanation()], Style(width=70))
    words = [line for line in text.splitlines() if "{" not in line and "/spec" not in line]
    assert max(map(len, words)) <= 70


def test_names_cannot_control_the_terminal() -> None:
    found = explanation()
    hostile = dataclasses.replace(found, diagnosis=Diagnosis("x", PodState.STUCK, "a\x1b[2Jb", "c\rd", Quote("s", "é")))
    text = as_text([hostile], Style("ascii"))
    assert "a [2Jb" in text
    assert "c d" in text
    assert "\\xe9" in text


def test_a_long_list_of_nodes_is_cut() -> None:
    cluster = EmulatedCluster()
    for number in range(9):
        cluster.node(f"free-{number}")
        cluster.node(f"full-{number}")
        cluster.claim(f"big-{number}", f"full-{number}", range(16))
    [found] = explained(legacy_pod(), cluster=live(cluster))
    lines = [line.strip() for line in as_text([found], Style()).splitlines()]
    assert "+ and 3 more" in lines
    told = next(line for line in lines if line.startswith("- 9 nodes"))
    assert told == (
        "- 9 nodes: 0 of 16 devices free, the pod needs 4: full-0, full-1, full-2, full-3, full-4, full-5 and 3 more "
        "(for example full-0: held by team-a/big-0 (16))"
    )


def test_a_long_patch_is_cut() -> None:
    found = explanation()
    decision = dataclasses.replace(found.preview.decision, patch=found.preview.decision.patch * 2)
    long = dataclasses.replace(found, preview=dataclasses.replace(found.preview, decision=decision))
    assert "and 6 more operations (-o json shows all)" in as_text([long], Style())


def test_text_keeps_no_explanation() -> None:
    alive: list[weakref.ref[Explanation]] = []

    def explanations() -> Iterator[Explanation]:
        for _ in range(3):
            found = _Referred(explanation().preview)
            assert sum(each() is not None for each in alive) <= 1
            alive.append(weakref.ref(found))
            yield found

    assert as_text(explanations(), Style()).count("Pod train (") == 3


def test_a_finding_about_several_pods_is_told_once() -> None:
    pages = explained(legacy_pod(name="one"), legacy_pod(name="two"))
    assert all("NEU216" in str([each.code for each in page.preview.findings]) for page in pages)
    text = as_text(pages, Style())
    assert text.count("NEU216 as for other pods: see the end") == 2
    assert text.count("neither the pod, a policy") == 1
    assert text.endswith("  about     Pod one, Pod two\n")
    assert "see the end" not in as_text(pages[:1], Style())
