"""The map in a terminal: drawings, lines, counts, colours, encodings, hostile names."""

import re

from commands.cli.map import Filter, apply
from commands.devices.device_map import build
from commands.devices.devices import DeviceMap
from commands.map.text import as_text
from runtime.console import Style, displayed
from tests.commands.map.clusters import HOSTILE, ULTRASERVER, many, mixed
from tests.support.emulated import PLUGIN, EmulatedCluster

TORUS = """\
torus  trn2.48xlarge, torus: 11 of 16 devices free, largest connected set free: 4 (4-7)
      ┊        ┊        ┊        ┊
  ┈[ 0 A ]──[ 1 A ]──[ 2 A ]──[ 3 A ]┈
      │        │        │        │
  ┈[ 4 · ]──[ 5 · ]──[ 6 · ]──[ 7 · ]┈
      │        │        │        │
  ┈[ 8 · ]──[ 9 B ]──[10 · ]──[11 · ]┈
      │        │        │        │
  ┈[12 · ]──[13 · ]──[14 · ]──[15 · ]┈
      ┊        ┊        ┊        ┊
  A team-a/train: devices 0-3, pod train
  B team-b/infer: device 9, pod infer
  adminAccess, holds nothing: team-a/monitor
  · free   a letter: held by a claim
"""
RING = """\
ring  inf2.48xlarge, ring: 6 of 12 devices free, largest connected set free: 6 (6-11)
  unhealthy: 5 hbm-ecc
   [ 0 A ]──[ 1 A ]──[ 2 A ]──[ 3 B+]──[ 4 * ]──[ 5 E✗]
      │                                            │
   [11 · ]──[10 · ]──[ 9 · ]──[ 8 · ]──[ 7 · ]──[ 6 · ]
  A team-a/window: devices 0-2, 6 cores, pod window
  B team-a/share: device 3, 1 core, pod share
  C team-a/other-share: device 4, 1 core, pod other-share
  D team-a/third-share: device 4, 1 core, pod third-share
  E team-a/on-sick: device 5, 2 cores, no pod
  · free   a letter: held by a claim
"""


def drawn(found: DeviceMap, *names: str, style: Style = Style()) -> str:
    return as_text(apply(Filter(names=frozenset(names)), found), style)


def test_a_torus_is_drawn_with_its_links_and_claims() -> None:
    assert TORUS in drawn(build(mixed().snapshot()), "torus")


def test_a_ring_is_drawn_with_shares_and_faults() -> None:
    assert RING in drawn(build(mixed().snapshot()), "ring")


def test_the_summary_shows_the_counts_that_still_fit() -> None:
    lines = as_text(build(mixed().snapshot()), Style()).splitlines()
    assert lines[2:4] == [
        "inf2.48xlarge: 1 node, 12 devices: 6 free, 5 held, 1 partly held, 1 fault in all",
        "  Largest connected set that still fits: 6 on ring. Places (count x connected devices): 6 x 1, 3 x 2, 1 x 4, "
        "0 x 8, 0 x 12.",
    ]
    assert lines[0] == "inf1.24xlarge: 1 node, 16 devices: 16 free, 1 node closed to new pods"
    assert lines[1] == "  No device is free on a node that takes new pods."


def test_nodes_before_the_migration_are_no_alarm() -> None:
    cluster = EmulatedCluster()
    cluster.node("a", "trn1.32xlarge", driver=False, allocatable={"aws.amazon.com/neuron": "16"})
    cluster.node("b", "trn1.32xlarge", common_taints=[PLUGIN], allocatable={"aws.amazon.com/neuron": "16"})
    found = build(cluster.snapshot())
    lines = as_text(found, Style()).splitlines()
    assert lines[:2] == [
        "trn1.32xlarge: 2 nodes, 32 devices: 32 with the device plugin, 2 nodes not moved to the driver yet",
        "  Pods get these devices by the limits of the device plugin (docs/migrate.md).",
    ]
    assert "trn1.32xlarge, torus: 16 devices with the device plugin" in drawn(found, "a")
    assert "no device is free" not in drawn(found, "a", "b")
    assert apply(Filter(attention=True), found).nodes == ()


def test_a_few_nodes_have_one_line_each() -> None:
    text = as_text(build(mixed().snapshot()), Style())
    assert "torus   trn2.48xlarge   11/16  4          AAAA ···· ·B·· ····\n" in text
    assert re.search(r"plugin +trn2.48xlarge +0/16 +0 +PPPP PPPP PPPP PPPP  device plugin only; plugin: 4 of 16 ", text)
    assert re.search(r"us-1 .* AAAA AAAA AAAA AAAA  node 1 of UltraServer bog7 \(set of 4\)", text)
    assert "! Claims for devices that no node publishes now: team-a/lost (gone/neuron-device-3)." in text


def test_nodes_of_an_ultraserver_stay_together() -> None:
    cluster = mixed()
    cluster.node("us-0a")
    order = [line.split()[0] for line in as_text(build(cluster.snapshot()), Style()).splitlines() if line[:2] == "us"]
    assert order == ["us-0a", "us-0", "us-1"]


def test_many_nodes_are_counted() -> None:
    text = as_text(build(many(64).snapshot()), Style())
    assert "trn2.48xlarge: nodes by their largest free connected set\n" in text
    assert re.search(r"^ +16 █+ 16$", text, re.MULTILINE)
    assert "n0003" not in text
    assert "-o wide lists every node." in text
    assert "n0063" in as_text(build(many(64).snapshot()), Style(), wide=True)
    assert as_text(build(many(5).snapshot()), Style(), draw=True).count("┈[ 0") == 5


def test_a_terminal_without_utf_8_gets_ascii() -> None:
    text = drawn(build(mixed().snapshot()), "ring", "torus", style=Style("ascii"))
    assert text.isascii()
    assert ".[ 0 A ]--[ 1 A ]--[ 2 A ]--[ 3 A ]." in text
    assert "[ 5 Ex]" in text


def test_colour_adds_only_colour() -> None:
    found = build(mixed().snapshot())
    plain = drawn(found, "torus")
    coloured = displayed(drawn(found, "torus", style=Style(colour=True)))
    assert "\x1b[36m[ 0 A ]\x1b[0m" in coloured
    assert "\x1b[32;7m[ 4 · ]\x1b[0m" in coloured
    stripped = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert stripped.replace("   inverted: largest connected set that is free", "") == plain


def test_names_do_not_control_the_terminal() -> None:
    cluster = EmulatedCluster()
    cluster.node(HOSTILE, "inf2.xlarge")
    cluster.claim(HOSTILE, HOSTILE, [0], namespace=HOSTILE)
    text = as_text(build(cluster.snapshot()), Style())
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "</script>" in text


def test_an_empty_cluster_is_a_sentence() -> None:
    text = as_text(DeviceMap((), problems=("You may not.",)), Style())
    assert text == "! You may not.\nNo node with Neuron devices.\n"


def test_a_list_of_no_node_is_the_same_sentence() -> None:
    sentence = "No node matches the filter: 3 nodes with Neuron devices do not.\n"
    assert as_text(DeviceMap((), left_out=3), Style(), wide=True) == sentence


def test_the_pod_group_of_a_shared_claim_is_shown_with_its_pods() -> None:
    cluster = EmulatedCluster()
    cluster.node("n")
    reserved = {"resource": "podgroups", "name": "gang", "uid": "g"}
    for name, pods, devices in (("shared", ["a", "b"], [0, 1]), ("idle", [], [2])):
        claim = cluster.claim(name, "n", devices, pods=pods)
        claim["status"]["reservedFor"].append(reserved)
    text = drawn(build(cluster.snapshot()), "n")
    assert "  A team-a/shared: devices 0-1, PodGroup gang, pod a, b\n" in text
    assert "  B team-a/idle: device 2, PodGroup gang, no pod\n" in text
    assert len(apply(Filter(claim="gang"), build(cluster.snapshot())).nodes) == 1


def test_a_node_of_the_ultraserver_operator_shows_its_workload() -> None:
    cluster = EmulatedCluster()
    for name in ("free", "taken", "labelled"):
        labels = {f"{ULTRASERVER}server-id-4": "bog7"} if name == "labelled" else None
        cluster.node(name, labels=labels)
        attributes = {"ultraserverId": {"string": "us-0"}}
        if name != "free":
            attributes["workloadId"] = {"string": "train"}
        for device in cluster.slices[-1]["spec"]["devices"]:
            device["attributes"] |= attributes
    text = drawn(build(cluster.snapshot()))
    assert "  a node of UltraServer us-0\n" in text
    assert "  a node of UltraServer us-0, allocated to NeuronUltraServerWorkload train\n" in text
    assert "  a node of UltraServer bog7 (set of 4), allocated to NeuronUltraServerWorkload train\n" in text
