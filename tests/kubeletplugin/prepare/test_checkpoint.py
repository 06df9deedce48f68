"""The checkpoint keeps the prepared claims and reports damage."""

import dataclasses
import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeletplugin.files import DiskFiles
from kubeletplugin.prepare.checkpoint import (
    Checkpoint,
    CheckpointStore,
    DamagedCheckpointError,
    PreparedClaim,
    PreparedDevice,
    Share,
    decode,
    difference,
    encode,
)
from kubeletplugin.prepare.decide import PrepareError
from tests.kubeletplugin.fakes import Node, allocated, config, devices, result, share, uid

# Few entries of each kind: drawing takes all the time.
SHARES = st.builds(
    Share,
    id=st.text(),
    cores=st.none() | st.lists(st.integers(0, 7)).map(tuple),
    logical_neuron_core=st.sampled_from([1, 2]),
    certain=st.booleans(),
)
DEVICES = st.builds(
    PreparedDevice,
    request=st.text(),
    pool=st.text(),
    device=st.text(),
    indices=st.lists(st.integers(0, 63)).map(tuple),
    admin_access=st.booleans(),
    share=st.none() | SHARES,
)
CLAIMS = st.builds(
    PreparedClaim,
    uid=st.text(),
    namespace=st.text(),
    name=st.text(),
    allocation=st.text(),
    devices=st.lists(DEVICES, max_size=3).map(tuple),
    environment=st.dictionaries(st.text(), st.dictionaries(st.text(), st.text(), max_size=2), max_size=2),
)
CHECKPOINTS = st.builds(
    lambda boot, claims, incomplete: Checkpoint(boot, {claim.uid: claim for claim in claims}, incomplete),
    st.text(),
    st.lists(CLAIMS, max_size=3),
    st.booleans(),
)

CLAIM = PreparedClaim(
    uid(1), "ns", "c", "digest", (PreparedDevice("n0/a", "p", "neuron-device-0", (0,)),), {"n0": {"A": "1"}}
)
CHECKPOINT = Checkpoint("boot", {CLAIM.uid: CLAIM})


@given(CHECKPOINTS)
def test_a_written_checkpoint_is_read_back(checkpoint: Checkpoint) -> None:
    assert decode(encode(checkpoint)) == checkpoint


def test_the_same_state_gives_the_same_bytes() -> None:
    values, other_way = {"n0": {"A": "1"}, "n1": {}}, {"n1": {}, "n0": {"A": "1"}}
    one = CHECKPOINT.with_claim(PreparedClaim(uid(2), "ns", "d", "digest", (), values))
    two = Checkpoint("boot").with_claim(PreparedClaim(uid(2), "ns", "d", "digest", (), other_way)).with_claim(CLAIM)
    assert encode(one) == encode(two)


def test_claims_are_added_and_removed() -> None:
    assert CHECKPOINT.without_claims(CLAIM.uid) == Checkpoint("boot")
    assert Checkpoint("boot").with_claim(CLAIM) == CHECKPOINT
    assert str(CLAIM) == f"ns/c (UID {uid(1)})"


def changed_checkpoint(**fields: str) -> bytes:
    return json.dumps(json.loads(encode(CHECKPOINT)) | fields).encode()


def with_data(data: str) -> bytes:
    checksum = "sha256:" + hashlib.sha256(data.encode()).hexdigest()
    head = '{"apiVersion":"checkpoint.neuron.aws.com/v1","kind":"NeuronCheckpoint"'
    return f'{head},"checksum":"{checksum}","data":{data}}}'.encode()


DAMAGED = {
    "empty": (b"", "it is not readable: Input data was truncated"),
    "cut-off": (encode(CHECKPOINT)[:-20], "it is not readable: "),
    "not-json": (b"\x00" * 100, "it is not readable: "),
    "not-utf-8": (b'{"apiVersion": "\xff"}', "it is not "),
    "flipped": (encode(CHECKPOINT).replace(b'"ns"', b'"nS"'), "its checksum does not fit its content"),
    "newer": (
        changed_checkpoint(apiVersion="checkpoint.neuron.aws.com/v3"),
        "it has apiVersion 'checkpoint.neuron.aws.com/v3', and this driver knows checkpoint.neuron.aws.com/v1 and "
        "checkpoint.neuron.aws.com/v2 only",
    ),
    "nested": (
        b'{"apiVersion":"checkpoint.neuron.aws.com/v1","x":' + b"[" * 100_000,
        "it is not readable: it is nested too deeply",
    ),
    "other-kind": (changed_checkpoint(kind="Pod"), "it has kind 'Pod', not NeuronCheckpoint"),
    "other-shape": (with_data('{"boot_id": 1}'), "it is not readable: Expected `str`, got `int`"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_checkpoint_is_an_error_with_the_cause(name: str) -> None:
    content, said = DAMAGED[name]
    with pytest.raises(DamagedCheckpointError) as caught:
        decode(content)
    assert said in str(caught.value)


def test_a_checkpoint_that_another_instance_wrote_is_loaded(node: Node) -> None:
    node.state_dir.mkdir()
    ours, theirs = (CheckpointStore(DiskFiles(), node.state_dir) for _ in range(2))
    assert ours.load() is None
    ours.save(CHECKPOINT)
    assert theirs.load() == CHECKPOINT
    theirs.save(Checkpoint("boot"))
    assert ours.load() == Checkpoint("boot")


def test_a_damaged_file_is_kept_for_people(node: Node) -> None:
    node.state_dir.mkdir()
    store = CheckpointStore(DiskFiles(), node.state_dir)
    store.path.write_bytes(b"garbage")
    aside, content = store.set_aside()
    assert aside.read_bytes() == b"garbage"
    assert aside.name.startswith("checkpoint.json.damaged-")
    assert store.set_aside() == (aside, content)


def test_a_checkpoint_of_the_first_version_is_read_with_unchanged_claims(node: Node) -> None:
    """Written by version 0.1.0: two claims in use and one that looks on, before devices were shared."""
    node.state_dir.mkdir()
    path = node.state_dir / "checkpoint.json"
    path.write_bytes(Path("tests/kubeletplugin/recorded/checkpoint-0.1.0.json").read_bytes())
    preparer = node.preparer()
    assert preparer.recover().errors == ()
    before = preparer.checkpoint()
    assert set(before.claims) == {uid(1), uid(2), uid(3)}
    assert all(device.share is None for claim in before.claims.values() for device in claim.devices)
    settings = [config("NeuronConfig", logicalNeuronCore=1)]
    answers = preparer.prepare(allocated(1, *devices(4, 5), config=settings), node.view())
    assert [answer.device for answer in answers] == ["neuron-device-4", "neuron-device-5"]
    preparer.prepare(allocated(2, result("neuron-device-0", "n0/a"), result("neuron-device-1", "n1")), node.view())
    preparer.prepare(allocated(3, result("neuron-device-4", "all", adminAccess=True)), node.view())
    after = preparer.checkpoint()
    assert after.count == 3
    unasked = {key: dataclasses.replace(claim, asked=0) for key, claim in after.claims.items()}
    assert unasked == before.claims, "the digests of allocations did not change"
    with pytest.raises(PrepareError, match="ns/claim-2"):
        preparer.prepare(allocated(4, share(1, 2)), node.view())


def test_a_damaged_file_is_compared_with_what_was_restored() -> None:
    device = PreparedDevice("n0", "node", "neuron-device-3", (3,), share=Share("s", (0, 1)))
    one, two = (PreparedClaim(f"u{n}", "ns", f"claim-{n}", "d", (device,)) for n in (1, 2))
    before = encode(Checkpoint("boot", {"u1": one, "u2": two})).replace(b"sha256:", b"sha512:")
    assert difference(before, Checkpoint("boot", {"u1": one, "u2": two})) == ""
    lines = difference(before, Checkpoint("boot", {"u1": one})).splitlines()
    assert lines[:2] == ["--- damaged", "+++ restored"]
    assert lines[-2:] == ["-ns/claim-2 u2", "-  n0: neuron-device-3, cores [0, 1]"]


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b'{"data": 1}', b'{"data": {"claims": [1]}}', b"\xff", b"[" * 5000], ids=repr
)
def test_a_damaged_file_may_say_anything(content: bytes) -> None:
    assert difference(content, Checkpoint("boot")).splitlines()[-1] == "-(its claims cannot be read)"
