"""Faulty versions are distinguished from others, also with the suffix of a distribution."""

from pathlib import Path

import pytest

from neuron.known_faults import (
    FAULTS,
    Component,
    KnownFault,
    Withheld,
    of,
    of_control_plane,
    oldest,
    parse,
    sentence,
    tries_orders,
    withheld,
)

BOOK = Path(__file__).parents[2] / "docs" / "versions.md"


def issues(component: Component, version: str) -> list[str]:
    return [fault.issue.partition("#")[2] for fault in of(component, version)]


def devices_fault(version: str) -> KnownFault | None:
    return next((each for each in of(Component.KUBELET, version) if each.withheld is Withheld.DEVICES), None)


@pytest.mark.parametrize("version", ["v1.34.0", "v1.34.1", "1.34.1", "v1.34.1-eks-113cf36", "v1.34.0+k3s1"])
def test_the_regression_of_the_kubelet_1_34_is_known(version: str) -> None:
    found, number = devices_fault(version), parse(version)
    assert found is not None
    assert number is not None
    assert (found.issue, found.fixed_after(number)) == ("kubernetes/kubernetes#133920", "1.34.2")


@pytest.mark.parametrize("version", ["v1.33.9", "v1.34.2", "v1.34.10", "v1.34.2-eks-1", "v1.35.0", "v2.34.1"])
def test_other_kubelets_have_no_fault_that_withholds_devices(version: str) -> None:
    assert devices_fault(version) is None


@pytest.mark.parametrize("version", ["", "v1.34", "latest", "v1.34.x", "v1.34.99999", "x1.34.1"])
def test_a_version_that_cannot_be_parsed_has_no_known_fault(version: str) -> None:
    assert parse(version) is None
    assert [each for component in Component for each in of(component, version)] == []
    assert withheld(version) == {}


@pytest.mark.parametrize(
    ("version", "scheduler", "what"),
    [
        ("v1.34.3", ["139034", "136269", "140436", ""], {Withheld.SHARES}),
        ("v1.34.9", ["139034", "140436", ""], {Withheld.SHARES}),
        ("v1.35.0", ["138882", "139034", "136269", "140436", ""], {Withheld.COUNTERS, Withheld.SHARES}),
        ("v1.35.5", ["138882", "139034", "140436", ""], {Withheld.COUNTERS, Withheld.SHARES}),
        ("v1.35.6", ["139034", "140436", ""], {Withheld.SHARES}),
        ("v1.36.0-eks-5c1f3a2", ["138882", "139034", "140436", "139651"], {Withheld.COUNTERS, Withheld.SHARES}),
        ("v1.36.1", ["138882", "139034", "140436", "139651"], {Withheld.COUNTERS, Withheld.SHARES}),
        ("v1.36.2", ["140436", "139651"], set()),
        ("v1.36.3", [], set()),
        ("v1.37.0", [], set()),
    ],
)
def test_schedulers(version: str, scheduler: list[str], what: set[Withheld]) -> None:
    assert issues(Component.SCHEDULER, version) == scheduler
    assert withheld(version).keys() == what


def test_kubelets_and_controllers() -> None:
    assert issues(Component.KUBELET, "v1.34.1") == ["133920", "135901", "140212"]
    assert issues(Component.KUBELET, "v1.35.0") == ["135901", "140212"]
    assert issues(Component.KUBELET, "v1.36.2") == ["140212"]
    assert issues(Component.KUBELET, "v1.37.0") == []
    assert [each.component for each in of_control_plane("v1.36.3")] == [Component.CONTROLLERS]


def test_a_sentence_names_version_issue_and_the_version_that_is_right() -> None:
    (fault,) = (each for each in of(Component.SCHEDULER, "v1.36.1") if each.withheld is Withheld.COUNTERS)
    assert sentence(fault, "v1.36.1") == (
        "kube-scheduler v1.36.1 panics when a claim with allocationMode: All meets a device that consumes shared"
        " counters (kubernetes/kubernetes#138882); fixed in 1.36.2."
    )


@pytest.mark.parametrize(
    ("version", "orders"),
    [("v1.34.9", True), ("v1.35.6-eks-1", True), ("v1.36.0", False), ("v1.37.1", False), ("", None), ("main", None)],
)
def test_which_schedulers_try_orders(version: str, *, orders: bool | None) -> None:
    assert tries_orders(version) is orders


def test_the_oldest_of_some_versions() -> None:
    assert oldest(["v1.36.2", "v1.35.10", "v1.35.9-eks-1"]) == "v1.35.9-eks-1"
    assert oldest(["v1.36.2", "main"]) == oldest([]) == ""


def test_ranges_begin_before_they_end_and_do_not_overlap() -> None:
    for fault in FAULTS:
        bounds = [bound for pair in fault.versions for bound in pair]
        assert bounds == sorted(set(bounds)), fault


def test_the_book_lists_every_fault() -> None:
    book = BOOK.read_text()
    for fault in FAULTS:
        row = next((line for line in book.splitlines() if line.startswith("|") and fault.effect in line), "")
        assert row, f"docs/versions.md lacks: {fault.effect}"
        assert fault.issue in row
        for first, fixed in fault.versions:
            assert f"{'.'.join(map(str, first))} to before {'.'.join(map(str, fixed))}" in row
        assert fault.remedy in row
