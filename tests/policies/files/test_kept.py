"""A start with faulty files finds the last good set."""

import asyncio
import datetime as dt
import json
import os
import zlib
from pathlib import Path

import pytest

from policies.files.folders import BOUNDS, FolderKeeper, KeepError, KeptSet, PolicyError, kept_set, pack, unpack
from policies.files.store import PolicyStore, StoreOptions
from tests.policies.files.test_store import NOW, names, nothing, watched, write

EARLIER = NOW - dt.timedelta(days=3)


class MemoryKeeper:
    def __init__(self, problem: str = "") -> None:
        self.problem = problem
        self.written: list[bytes] = []

    async def read(self) -> bytes | None:
        return self.written[-1] if self.written else None

    async def write(self, content: bytes, known: str) -> None:
        if self.problem:
            raise KeepError(self.problem)
        assert unpack(content).digest == known
        self.written.append(content)


def opened(
    folder: Path, kept: KeptSet | None, keeper: MemoryKeeper | None = None, *, together: bool = False
) -> PolicyStore:
    return PolicyStore.open(folder, StoreOptions(lambda: NOW, together, keeper=keeper), kept)


@pytest.fixture
def kept(tmp_path: Path) -> KeptSet:
    """The set of an earlier run; then one of its files became faulty, and another one was added."""
    write(tmp_path / "a.yaml", "a")
    write(tmp_path / "b.yaml", "b")
    files = {str(tmp_path / name): (tmp_path / name).read_bytes() for name in ("a.yaml", "b.yaml")}
    write(tmp_path / "a.yaml", "a", "objekt")
    write(tmp_path / "c.yaml", "c")
    return unpack(pack(kept_set(files, tmp_path, EARLIER)))


def test_a_faulty_file_stops_the_start_without_a_kept_set(tmp_path: Path, kept: KeptSet) -> None:
    with pytest.raises(PolicyError, match="objekt"):
        opened(tmp_path, None)


@pytest.mark.parametrize("together", [False, True])
def test_a_start_restores_the_kept_set(tmp_path: Path, kept: KeptSet, *, together: bool) -> None:
    store = opened(tmp_path, kept, together=together)
    assert (names(store), store.older_since, store.loaded_at) == (["a", "b"], EARLIER, EARLIER)
    assert "a.yaml" in store.problem
    assert "2 in force since 2026-05-29T12:00:00+00:00; the folder has changed and was rejected" in store.check()[1]


def test_the_watch_then_loads_the_files_that_have_no_problem(tmp_path: Path, kept: KeptSet) -> None:
    store = opened(tmp_path, kept)
    watched(store, nothing, nothing)
    assert (names(store), store.older_since) == (["a", "b", "c"], EARLIER)
    assert store.rejected == (str(tmp_path / "a.yaml"),)
    watched(store, lambda: write(tmp_path / "a.yaml", "mended"), nothing)
    assert (names(store), store.older_since, store.problems) == (["mended", "b", "c"], None, ())


def test_a_restored_set_is_checked_like_any_file(tmp_path: Path, kept: KeptSet) -> None:
    text = b"apiVersion: policy.neuron.aws.com/v1alpha1\nkind: ValidatingPolicy\nmetadata: {name: x}\nspec: {}\n"
    with pytest.raises(PolicyError, match="the set that was kept cannot be loaded either: spec"):
        opened(tmp_path, KeptSet({"a.yaml": text}, EARLIER))


def test_a_valid_folder_is_used_instead_of_the_kept_set(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", "a")
    store = opened(tmp_path, KeptSet({"b.yaml": (tmp_path / "a.yaml").read_bytes()}, EARLIER))
    assert (names(store), store.older_since, store.problems) == (["a"], None, ())


def test_every_complete_set_is_kept_once(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", "a")
    keeper = MemoryKeeper()
    store = opened(tmp_path, None, keeper)
    watched(store, nothing, nothing)
    watched(store, lambda: write(tmp_path / "a.yaml", "a", "objekt"), *([nothing] * 20))
    assert [list(unpack(each).files) for each in keeper.written] == [["a.yaml"]]
    watched(store, lambda: write(tmp_path / "a.yaml", "other"), *([nothing] * 20))
    assert [b"other" in unpack(each).files["a.yaml"] for each in keeper.written] == [False, True]


def test_a_set_that_cannot_be_kept_is_reported(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", "a")
    keeper = MemoryKeeper("no room")
    store = opened(tmp_path, None, keeper)
    watched(store, nothing)
    assert store.check()[1].endswith("; not kept: no room")
    keeper.problem = ""
    watched(store, *([nothing] * 10))
    assert (store.keep_problem, len(keeper.written)) == ("", 1)


def test_a_running_server_reports_since_when_an_older_set_is_in_force(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", "a")
    store = opened(tmp_path, None)
    assert store.older_since is None
    watched(store, lambda: write(tmp_path / "b.yaml", "b", "objekt"), nothing)
    assert store.older_since == NOW


def test_a_packed_set_is_unpacked_unchanged(tmp_path: Path) -> None:
    files = {f"{tmp_path}/a.yaml": b"\xff\x00", f"{tmp_path}/sub/b.yaml": b""}
    kept = kept_set(files, tmp_path, EARLIER)
    assert unpack(pack(kept)) == kept
    assert kept.within(tmp_path) == files


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no zlib",
        zlib.compress(b"[]"),
        zlib.compress(b"{}"),
        zlib.compress(b"[" * 100_000),
        zlib.compress(json.dumps({"files": {}, "since": "2026-01-01", "digest": ""}).encode()),
        zlib.compress(json.dumps({"files": {"a": 1}, "since": EARLIER.isoformat(), "digest": ""}).encode()),
        zlib.compress(b" " * (64 << 20)),
        pack(KeptSet({"a": b"x"}, EARLIER))[:-4],
        pack(KeptSet({"../a": b"x"}, EARLIER)),
        pack(KeptSet({"/a": b"x"}, EARLIER)),
    ],
    ids=range(11),
)
def test_damaged_content_is_refused(content: bytes) -> None:
    with pytest.raises(KeepError):
        unpack(content)


def test_a_changed_content_is_refused() -> None:
    data = json.loads(zlib.decompress(pack(KeptSet({"a": b"x"}, EARLIER))))
    data["files"]["a"] = ""
    with pytest.raises(KeepError, match="digest differs"):
        unpack(zlib.compress(json.dumps(data).encode()))


def test_a_set_that_is_too_large_is_not_kept() -> None:
    noise = os.urandom(BOUNDS.kept)
    with pytest.raises(KeepError, match="compressed"):
        pack(KeptSet({"a.yaml": noise}, EARLIER))


def test_a_directory_keeps_a_set(tmp_path: Path) -> None:
    keeper = FolderKeeper(tmp_path / "state")
    first, second = (KeptSet({"a.yaml": text}, EARLIER) for text in (b"1", b"2"))

    async def run() -> list[bytes | None]:
        found = [await keeper.read()]
        for each in (first, first, second):
            await keeper.write(pack(each), each.digest)
            found.append(await keeper.read())
        return found

    found = asyncio.run(run())
    assert found[0] is None
    assert [unpack(each) for each in found[1:] if each] == [first, first, second]
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["policies.json.z"]


def test_a_directory_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    kept = KeptSet({"a.yaml": b"1"}, EARLIER)
    with pytest.raises(KeepError, match="cannot be"):
        asyncio.run(FolderKeeper(tmp_path / "state").write(pack(kept), kept.digest))
