"""What the tests believe of the Kubernetes version under test is what its programs say."""

import re
from pathlib import Path

import pytest

from tests.cluster import versions
from tests.cluster.api import Api
from tests.cluster.controlplane import Assets, ControlPlane

_ROW = re.compile(r"^\| ([A-Za-z]+) \| ((?:(?:on|off|-) \| ){2}(?:on|off|-)) \|", re.MULTILINE)
BOOK = Path(__file__).parents[2] / "docs" / "versions.md"


def test_the_api_server_reports_the_version_of_its_binary(assets: Assets, api: Api) -> None:
    assert api.request("GET", "/version").body["gitVersion"].startswith(f"v{versions.text(assets.version)}")


@pytest.mark.parametrize("name", [name for name, each in versions.FEATURES.items() if each.gate])
def test_the_table_of_features_agrees_with_the_programs(assets: Assets, name: str) -> None:
    feature, version = versions.FEATURES[name], assets.version[:2]
    gates = versions.gates_of_binary(assets.folder / "kube-apiserver")
    assert gates, "the help of kube-apiserver lists gates"
    if feature.gate in gates:
        assert gates[feature.gate] == (version >= feature.since)
        assert version >= feature.gate_since
    else:
        # Neither known yet nor any more: locked gates are not listed.
        assert version < feature.gate_since or version >= feature.since


def test_gates_that_a_version_does_not_know_are_not_passed(control_plane: ControlPlane) -> None:
    given = {"DRAConsumableCapacity": False, "DRAResourceClaimGranularStatusAuthorization": False}
    assert versions.known_gates((1, 34, 9), given) == {"DRAConsumableCapacity": False}
    assert versions.known_gates((1, 36, 2), given) == given
    gates = versions.gates_of_binary(control_plane.assets.folder / "kube-scheduler")
    assert versions.known_gates(control_plane.assets.version, given).keys() <= gates.keys()


def test_the_reason_of_a_skipped_test_names_version_feature_and_gate() -> None:
    assert versions.lacks((1, 36, 2), ["shares", "taints"]) == ""
    assert versions.lacks((1, 35, 6), ["shares"]) == (
        "Kubernetes 1.35.6 lacks shares: shares of a device (DRAConsumableCapacity, on by default from 1.36)"
    )
    assert versions.lacks((1, 34, 9), ["late-templates"]) == (
        "Kubernetes 1.34.9 lacks late-templates: pods that wait for a template are looked at when it is created "
        "(from 1.36)"
    )


def test_a_program_without_a_version_is_refused(tmp_path: Path) -> None:
    program = tmp_path / "kube-apiserver"
    program.write_text("#!/bin/sh\necho none\n")
    program.chmod(0o755)
    with pytest.raises(ValueError, match="prints 'none', and no version of Kubernetes"):
        versions.of_binary(program)


def test_the_book_has_the_same_table() -> None:
    """docs/versions.md: since when each gate is on by default."""
    rows = dict(_ROW.findall(BOOK.read_text()))
    for feature in versions.FEATURES.values():
        if feature.gate in rows:
            since = [
                "on" if minor >= feature.since else "off" if minor >= feature.gate_since else "-"
                for minor in ((1, 34), (1, 35), (1, 36))
            ]
            assert rows[feature.gate] == " | ".join(since)
    assert {"DRAConsumableCapacity", "DRADeviceTaints", "DRAPartitionableDevices"} <= rows.keys()
