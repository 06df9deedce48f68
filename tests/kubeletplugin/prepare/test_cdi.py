"""CDI specs are valid, carry the claim's UID and the claim itself, and replace each other atomically."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from kubeletplugin.files import DiskFiles
from kubeletplugin.prepare import cdi
from kubeletplugin.prepare.cdi import MetadataFiles
from kubeletplugin.prepare.checkpoint import PreparedDevice
from tests.conformance.schemas import CDI, cdi_faults, recorded
from tests.kubeletplugin.fakes import BOOT, NODE, prepared_claim, uid

NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")
KIND = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*[A-Za-z0-9]/[A-Za-z]([A-Za-z0-9_-]*[A-Za-z0-9])?")


def device(index: int, request: str = "n0", *, admin: bool = False) -> PreparedDevice:
    return PreparedDevice(request, NODE, f"neuron-device-{index}", (index,), admin)


TWO = prepared_claim(1, device(0), device(1), device(2, "n1/a"), environment={"n0": {"B": "2", "A": "1"}, "n1": {}})


def check_schema(spec: dict[str, Any]) -> None:
    """The schema of the Container Device Interface, and the rules that its text adds."""
    assert cdi_faults(spec) == []
    assert spec["cdiVersion"] == recorded(CDI)["about"]["version"]
    assert KIND.fullmatch(spec["kind"])
    names = [each["name"] for each in spec["devices"]]
    assert len(set(names)) == len(names) > 0
    for each in spec["devices"]:
        assert NAME.fullmatch(each["name"])
        edits = each["containerEdits"]
        assert edits
        assert all("=" in entry for entry in edits.get("env", []))
        assert all(node["path"].startswith("/") for node in edits.get("deviceNodes", []))


def test_a_spec_is_valid_and_has_the_edits_of_containers() -> None:
    spec = json.loads(json.dumps(cdi.spec(TWO, BOOT)))
    check_schema(spec)
    assert spec["kind"] == "neuron.aws.com/claim"
    assert spec["devices"] == [
        {
            "name": f"{uid(1)}_n0_neuron-device-0",
            "containerEdits": {"deviceNodes": [{"path": "/dev/neuron0", "permissions": "rw"}]},
        },
        {
            "name": f"{uid(1)}_n0_neuron-device-1",
            "containerEdits": {"deviceNodes": [{"path": "/dev/neuron1", "permissions": "rw"}]},
        },
        {
            "name": f"{uid(1)}_n1_neuron-device-2",
            "containerEdits": {"deviceNodes": [{"path": "/dev/neuron2", "permissions": "rw"}]},
        },
        {"name": f"{uid(1)}_n0", "containerEdits": {"env": ["A=1", "B=2"]}},
    ]


@pytest.mark.parametrize(
    ("edits", "fault"),
    [
        ({"env": ["A=1"], "deviceNode": []}, "devices[0].containerEdits: Additional properties are not allowed"),
        ({"deviceNodes": [{"hostPath": "/dev/neuron0"}]}, "'path' is a required property"),
        ({"deviceNodes": [{"path": "/dev/neuron0", "major": "1"}]}, "major: '1' is not of type 'integer'"),
        ({"additionalGids": [1]}, "'additionalGids' was unexpected"),
    ],
    ids=["unknown", "missing", "type", "of-a-later-version"],
)
def test_an_invalid_cdi_spec_is_found(edits: dict[str, Any], fault: str) -> None:
    spec = {"cdiVersion": "0.6.0", "kind": "a.b/c", "devices": [{"name": "d", "containerEdits": edits}]}
    [found] = cdi_faults(spec)
    assert fault in found


def test_device_nodes_elsewhere_keep_their_path_in_the_container() -> None:
    spec = cdi.spec(TWO, BOOT, Path("/srv/dev"))
    check_schema(spec)
    [first, *_] = spec["devices"]
    [node] = first["containerEdits"]["deviceNodes"]
    assert node == {"path": "/dev/neuron0", "permissions": "rw", "hostPath": "/srv/dev/neuron0"}


def test_emulated_devices_need_no_node_on_the_host() -> None:
    [first, *_] = cdi.spec(TWO, BOOT, None)["devices"]
    [node] = first["containerEdits"]["deviceNodes"]
    assert node == {"path": "/dev/neuron0", "permissions": "rw", "type": "c", "major": 1, "minor": 3}


def test_a_whole_node_is_one_device_with_all_nodes() -> None:
    whole = prepared_claim(1, PreparedDevice("n0", NODE, "neuron-node", tuple(range(16))))
    check_schema(cdi.spec(whole, BOOT))
    [only] = cdi.spec(whole, BOOT)["devices"]
    paths = [node["path"] for node in only["containerEdits"]["deviceNodes"]]
    assert paths == [f"/dev/neuron{index}" for index in range(16)]


def test_the_environment_of_a_request_is_set_once_with_its_first_device() -> None:
    ids = [cdi.device_ids(TWO, position) for position in range(3)]
    kind = "neuron.aws.com/claim"
    assert ids == [
        (f"{kind}={uid(1)}_n0_neuron-device-0", f"{kind}={uid(1)}_n0"),
        (f"{kind}={uid(1)}_n0_neuron-device-1",),
        (f"{kind}={uid(1)}_n1_neuron-device-2",),
    ]


@pytest.mark.parametrize(
    "foreign",
    ["gpu.example.com/claim=u_n0_d", "neuron.aws.com/claim=u", "neuron.aws.com/claim=_n0_d", "neuron.aws.com/claim"],
    ids=["driver", "no request", "no UID", "no name"],
)
def test_ids_of_another_form_are_not_ours(foreign: str) -> None:
    assert cdi.parse_id(foreign) is None


def test_ids_and_spec_agree() -> None:
    named = {f"neuron.aws.com/claim={each['name']}" for each in cdi.spec(TWO, BOOT)["devices"]}
    assert {each for position in range(3) for each in cdi.device_ids(TWO, position)} == named


def test_one_claim_can_use_a_device_and_have_admin_access_to_it() -> None:
    both = prepared_claim(1, device(0), device(0, "monitor", admin=True))
    check_schema(cdi.spec(both, BOOT))


@pytest.fixture
def specs(tmp_path: Path) -> cdi.SpecFiles:
    return cdi.SpecFiles(DiskFiles(), tmp_path / "cdi", BOOT)


def test_a_spec_carries_the_claim(specs: cdi.SpecFiles) -> None:
    specs.ensure(TWO)
    assert specs.path(uid(1)).name == f"neuron.aws.com-claim_{uid(1)}.json"
    assert specs.uids() == [uid(1)]
    assert specs.read(uid(1)) == TWO


def test_a_correct_spec_is_not_written_again(specs: cdi.SpecFiles) -> None:
    specs.ensure(TWO)
    before = specs.path(uid(1)).stat().st_ino
    specs.ensure(TWO)
    assert specs.path(uid(1)).stat().st_ino == before
    specs.path(uid(1)).write_text("{}")
    specs.ensure(TWO)
    assert specs.read(uid(1)) == TWO


@pytest.mark.parametrize("with_metadata", [False, True])
@pytest.mark.parametrize("dev_root", [Path("/dev"), Path("/srv/dev"), None], ids=["dev", "elsewhere", "emulated"])
def test_the_file_has_the_device_nodes_of_its_directory(
    tmp_path: Path, dev_root: Path | None, with_metadata: bool
) -> None:
    metadata = MetadataFiles(DiskFiles(), tmp_path) if with_metadata else None
    specs = cdi.SpecFiles(DiskFiles(), tmp_path / "cdi", BOOT, dev_root, metadata)
    specs.ensure(TWO)
    mount = [metadata.mount] if metadata is not None else []
    assert json.loads(specs.path(uid(1)).read_text()) == cdi.spec(TWO, BOOT, dev_root, *mount)


def test_a_claim_without_metadata_is_named_by_its_containers(tmp_path: Path) -> None:
    """Of an older version, or restored from the kubelet."""
    metadata = MetadataFiles(DiskFiles(), tmp_path)
    claim = dataclasses.replace(TWO, number=3)
    cdi.SpecFiles(DiskFiles(), tmp_path / "cdi", BOOT, None, metadata).ensure(claim)
    mounts = [each for device in cdi.spec(claim, BOOT, None, metadata.mount)["devices"] for each in mounts_of(device)]
    assert [Path(each["hostPath"]).name for each in mounts] == [f"{uid(1)}_n0_3.json", f"{uid(1)}_n1_3.json"]
    for each in mounts:
        assert json.loads(Path(each["hostPath"]).read_text())["metadata"]["uid"] == uid(1)


def mounts_of(device: Any) -> list[Any]:
    return list(device["containerEdits"].get("mounts", ()))


def test_a_claim_that_was_read_back_has_the_same_spec(specs: cdi.SpecFiles) -> None:
    """Checkpoints sort the requests: after a restart no spec counts as changed."""
    one, two = {"n1": {"A": "1"}}, {"n0": {"A": "1"}}
    specs.ensure(prepared_claim(1, device(0), device(1, "n1"), environment=one | two))
    assert not specs.ensure(prepared_claim(1, device(0), device(1, "n1"), environment=two | one))


def test_removing_a_missing_spec_is_no_error(specs: cdi.SpecFiles) -> None:
    specs.remove(uid(1))
    specs.ensure(TWO)
    specs.remove(uid(1))
    assert specs.uids() == []


def test_files_of_other_programs_are_ignored(specs: cdi.SpecFiles, tmp_path: Path) -> None:
    specs.ensure(TWO)
    foreign = ["nvidia.json", ".other.tmp", "neuron.aws.com-claim_x y.json", "neuron.aws.com-claim_a.yaml"]
    for name in foreign:
        (tmp_path / "cdi" / name).touch()
    (tmp_path / "cdi" / f".neuron.aws.com-claim_{uid(2)}.json.tmp").touch()
    assert specs.uids() == [uid(1)]
    left = {path.name for path in (tmp_path / "cdi").iterdir()}
    assert left == {*foreign, specs.path(uid(1)).name}


def test_a_uid_cannot_lead_out_of_the_directory(specs: cdi.SpecFiles) -> None:
    with pytest.raises(ValueError, match=r"^'\.\./x' is not the UID of a ResourceClaim\.$"):
        specs.path("../x")


DAMAGED = {
    "not-json": ("{", "cannot be read back"),
    "nested": ('{"devices":' + "[" * 100_000, "cannot be read back: RecursionError("),
    "no-annotations": ("{}", "Object missing required field `annotations`"),
    "odd-annotations": ('{"annotations": []}', "Expected `object`, got `array` - at `$.annotations`"),
    "no-claim": ('{"annotations": {}}', "prepared-claim"),
    "odd-claim": ('{"annotations": {"neuron.aws.com/prepared-claim": "{}"}}', "missing required field"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_spec_is_an_error_with_the_cause(specs: cdi.SpecFiles, name: str) -> None:
    content, said = DAMAGED[name]
    specs.ensure(TWO)
    specs.path(uid(1)).write_text(content)
    with pytest.raises(cdi.DamagedSpecError) as caught:
        specs.read(uid(1))
    assert said in str(caught.value)
    assert str(specs.path(uid(1))) in str(caught.value)


def test_a_spec_of_another_claim_or_boot_is_damaged(specs: cdi.SpecFiles, tmp_path: Path) -> None:
    specs.ensure(TWO)
    specs.path(uid(1)).rename(specs.path(uid(2)))
    with pytest.raises(cdi.DamagedSpecError, match="not the one of its name"):
        specs.read(uid(2))
    specs.ensure(TWO)
    with pytest.raises(cdi.DamagedSpecError, match="before the node was rebooted"):
        cdi.SpecFiles(DiskFiles(), tmp_path / "cdi", "another boot").read(uid(1))
