"""Configs become the runtime's variables; a number of nodes is not the driver's mode."""

import pytest

from kubeletplugin.discover.sysfs import Membership, UltraServer
from kubeletplugin.prepare.cdi import UltraServerError, environment, read_visible_cores, visible_cores
from neuron.api.configs import ConfigsInForce

MEMBERS = {2: Membership("aa" * 8, 1), 4: Membership("bb" * 8, 3)}


def variables(mode: str, server: str, node: str) -> dict[str, str]:
    return {
        "NEURON_RT_ULTRASERVER_MODE": mode,
        "NEURON_RT_ULTRASERVER_SERVER_ID": server,
        "NEURON_RT_ULTRASERVER_NODE_ID": node,
    }


def test_no_variable_is_set_without_settings() -> None:
    assert environment(ConfigsInForce(), UltraServer()) == {}


@pytest.mark.parametrize("lnc", [1, 2])
def test_lnc_is_set(lnc: int) -> None:
    assert environment(ConfigsInForce(lnc), None) == {"NEURON_LOGICAL_NC_CONFIG": str(lnc)}


@pytest.mark.parametrize(
    ("nodes", "modes", "expected"),
    [
        (4, {1, 2, 3, 4}, variables("1", "bb" * 8, "3")),
        (2, {1, 2, 3, 4}, variables("3", "aa" * 8, "1")),
        (2, {1, 2, 4}, variables("2", "aa" * 8, "1")),
        (1, {1, 2, 3, 4}, variables("4", "0" * 16, "-1")),
        (1, set(), variables("4", "0" * 16, "-1")),
    ],
    ids=["four-is-1", "two-prefers-vertical", "two-horizontal", "one-is-4", "one-is-always-possible"],
)
def test_a_number_of_nodes_becomes_the_mode_that_means_it(
    nodes: int, modes: set[int], expected: dict[str, str]
) -> None:
    """Trap: 4 is "four nodes" in a config and "one node" in the driver's enum."""
    assert environment(ConfigsInForce(None, nodes), UltraServer(frozenset(modes), MEMBERS)) == expected


def test_settings_of_both_kinds_are_combined() -> None:
    found = environment(ConfigsInForce(1, 2), UltraServer(frozenset({3}), MEMBERS))
    assert found == {"NEURON_LOGICAL_NC_CONFIG": "1"} | variables("3", "aa" * 8, "1")


@pytest.mark.parametrize(
    ("cores", "value"),
    [((3,), "3"), ((0, 1), "0-1"), ((10, 11, 12), "10-12"), ((1, 3), "1,3"), ((0, 1, 4), "0,1,4")],
    ids=str,
)
def test_visible_cores_are_a_range_or_a_list(cores: tuple[int, ...], value: str) -> None:
    assert visible_cores(cores) == value
    assert read_visible_cores(value) == cores


@pytest.mark.parametrize(
    ("value", "cores"),
    [
        ("0-1,4-5", (0, 1, 4, 5)),
        ("", ()),
        ("all", ()),
        ("1,x", ()),
        ("-1", ()),
        ("1-", ()),
        ("12345", ()),
        # A container may choose it, and say it 18,000 times in one variable.
        ("0-9999,0-9999", ()),
    ],
    ids=str,
)
def test_visible_cores_of_another_form_are_none(value: str, cores: tuple[int, ...]) -> None:
    assert read_visible_cores(value) == cores


def test_one_node_needs_no_ultraserver_files() -> None:
    assert environment(ConfigsInForce(None, 1), None) == variables("4", "0" * 16, "-1")


REFUSED = {
    "ultraserverMode 4 needs an UltraServer, but the kernel driver shows none on this node.": (4, None),
    "The nodes of the UltraServer are still electing their places; the kubelet tries again by itself.": (
        2,
        UltraServer(frozenset({1}), MEMBERS, busy=True),
    ),
    "This node cannot be one of 4 UltraServer nodes: the kernel driver lists the modes 4 (it takes 1) and names a "
    "set of 4 nodes.": (4, UltraServer(frozenset({4}), MEMBERS)),
    "This node cannot be one of 2 UltraServer nodes: the kernel driver lists the modes 2, 3, 8 (it takes 3 or 2) "
    "and names no set of 2 nodes.": (2, UltraServer(frozenset({2, 3, 8}))),
    "This node cannot be one of 2 UltraServer nodes: the kernel driver lists the modes none (it takes 3 or 2) and "
    "names a set of 2 nodes.": (2, UltraServer(frozenset(), MEMBERS)),
}


@pytest.mark.parametrize("said", REFUSED)
def test_a_set_that_the_node_is_not_part_of_is_refused(said: str) -> None:
    nodes, ultraserver = REFUSED[said]
    with pytest.raises(UltraServerError) as caught:
        environment(ConfigsInForce(None, nodes), ultraserver)
    assert str(caught.value) == said
