"""The policies in force: a faulty file keeps its last good version, or the whole set stays."""

import asyncio
import datetime as dt
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from policies.files.folders import PolicyError
from policies.files.store import PolicyStore, StoreOptions, fingerprint

NOW = dt.datetime(2026, 6, 1, 12, tzinfo=dt.UTC)
POLICY = """
apiVersion: policy.neuron.aws.com/v1alpha1
kind: ValidatingPolicy
metadata: {{name: {name}}}
spec:
  matchConstraints:
    resourceRules: [{{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}}]
  validations: [{{expression: "{expression}"}}]
"""


def write(path: Path, name: str = "a", expression: str = "true") -> None:
    path.write_text(POLICY.format(name=name, expression=expression))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "a.yaml")
    return tmp_path


def opened(folder: Path, *, together: bool = False) -> PolicyStore:
    return PolicyStore.open(folder, StoreOptions(lambda: NOW, together))


def names(store: PolicyStore) -> list[str]:
    return [rule.name for rule in store.current.validating]


def watched(store: PolicyStore, *steps: Callable[[], object]) -> None:
    """Watch for as many looks as there are steps, doing one before each."""
    left = list(steps)

    async def sleep(_: float) -> None:
        if not left:
            raise asyncio.CancelledError
        left.pop(0)()

    async def run() -> None:
        with pytest.raises(asyncio.CancelledError):
            await store.watch(sleep)

    asyncio.run(run())


def nothing() -> None:
    """A look that finds what the one before found."""


def test_a_changed_folder_is_loaded_after_the_debounce(folder: Path) -> None:
    store = opened(folder)
    seen: list[list[str]] = []
    watched(
        store,
        lambda: write(folder / "b.yaml", "b"),
        lambda: write(folder / "c.yaml", "c"),
        lambda: seen.append(names(store)),
        nothing,
    )
    assert seen == [["a"]]
    assert names(store) == ["a", "b", "c"]
    assert store.reloads == {"success": 1, "failure": 0}


def test_an_unchanged_folder_is_not_loaded_again(folder: Path) -> None:
    store = opened(folder)
    before = store.current
    watched(store, nothing, lambda: os.utime(folder / "a.yaml", (1, 1)), nothing, nothing)
    assert store.current is before
    assert store.reloads == {"success": 0, "failure": 0}


def test_the_last_good_set_stays_and_the_reason_is_reported(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = opened(folder, together=True)
    before = store.current
    with caplog.at_level(logging.ERROR):
        watched(store, lambda: write(folder / "b.yaml", "b", "objekt"), nothing)
    assert store.current is before
    assert store.reloads == {"success": 0, "failure": 1}
    passed, detail = store.check()
    assert passed, "old policies are no reason to be taken out of service"
    assert detail.startswith("1 in force since 2026-06-01T12:00:00+00:00; the folder has changed and was rejected: ")
    assert f"{folder}/b.yaml:8: spec.validations[0].expression" in detail
    assert "\n" not in detail
    (record,) = caplog.records
    assert record.getMessage() == "policies not reloaded: the set in force stays"
    assert record.__dict__["number"] == 1


def test_a_failing_case_keeps_the_last_good_set(folder: Path) -> None:
    store = opened(folder)
    text = POLICY.format(name="a", expression="false") + "  tests: [{name: t, object: {kind: Pod}, expect: NoMatch}]\n"
    text = text.replace("kind: Pod", "apiVersion: v1, kind: Pod")
    watched(store, lambda: (folder / "a.yaml").write_text(text), nothing)
    assert "test 't' of a: expected NoMatch, came Deny." in store.check()[1]


def test_a_repaired_folder_is_loaded_even_if_it_equals_the_old_one(folder: Path) -> None:
    store = opened(folder)
    watched(store, lambda: write(folder / "a.yaml", "a", "objekt"), nothing, lambda: write(folder / "a.yaml"), nothing)
    assert store.check() == (True, "1 in force since 2026-06-01T12:00:00+00:00")
    assert store.reloads == {"success": 1, "failure": 1}


def test_a_deleted_folder_keeps_the_last_good_set(folder: Path, tmp_path: Path) -> None:
    store = opened(folder)
    moved = tmp_path.parent / f"{tmp_path.name}-moved"
    watched(store, lambda: folder.rename(moved), nothing)
    assert names(store) == ["a"]
    assert "this is not a directory" in store.check()[1]


def test_a_config_map_is_followed_through_its_links(tmp_path: Path) -> None:
    for generation, name in (("..1", "a"), ("..2", "b")):
        (tmp_path / generation).mkdir()
        write(tmp_path / generation / "p.yaml", name)
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "p.yaml").symlink_to("..data/p.yaml")
    store = opened(tmp_path)

    def swap() -> None:
        """As the kubelet does: a new link takes the place of the old one."""
        (tmp_path / "..new").symlink_to("..2")
        (tmp_path / "..new").replace(tmp_path / "..data")

    watched(store, swap, nothing)
    assert names(store) == ["b"]


def test_an_unexpected_exception_does_not_end_the_watch(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = opened(folder)

    def broken(_: object) -> object:
        raise ZeroDivisionError

    monkeypatch.setattr("policies.files.store.load", broken)
    write(folder / "a.yaml", "z")
    asyncio.run(store.reload())
    assert store.check()[1].endswith("loading failed; see the log.")
    assert "policies not reloaded" in caplog.text


def test_the_first_load_raises(folder: Path) -> None:
    write(folder / "a.yaml", "a", "objekt")
    with pytest.raises(PolicyError, match=r"a\.yaml:8"):
        opened(folder)


def test_a_dangling_link_changes_the_fingerprint(folder: Path) -> None:
    before = fingerprint(folder)
    (folder / "b.yaml").symlink_to("nowhere")
    assert fingerprint(folder) != before


def test_a_faulty_file_keeps_its_last_good_version_and_the_others_are_loaded(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = opened(folder)

    def change() -> None:
        write(folder / "a.yaml", "a", "objekt")
        write(folder / "b.yaml", "b")

    with caplog.at_level(logging.ERROR):
        watched(store, change, nothing)
    assert names(store) == ["a", "b"]
    assert store.rejected == (f"{folder}/a.yaml",)
    passed, detail = store.check()
    assert passed
    assert detail.startswith(
        f"2 in force since 2026-06-01T12:00:00+00:00; the last good version of 1 file stays: {folder}/a.y"
    )
    (record,) = caplog.records
    assert record.getMessage() == "policy files not loaded: last good versions stay, new files are left out"
    watched(store, lambda: write(folder / "a.yaml", "c"), nothing)
    assert (names(store), store.problems) == (["c", "b"], ())


def test_a_new_file_with_a_problem_is_left_out_and_keeps_removed_files(folder: Path) -> None:
    store = opened(folder)

    def rename() -> None:
        (folder / "a.yaml").unlink()
        write(folder / "z.yaml", "a", "objekt")

    watched(store, rename, nothing)
    assert names(store) == ["a"], "a policy that is renamed and broken at once stays in force"
    assert "1 new file is left out: " in store.check()[1]
    watched(store, lambda: write(folder / "z.yaml", "z"), nothing)
    assert (names(store), store.problems) == (["z"], ())


def test_an_unreadable_file_keeps_its_last_good_version(folder: Path) -> None:
    store = opened(folder)

    def change() -> None:
        (folder / "a.yaml").write_bytes(b"#" * (1 << 20) + b"##")
        write(folder / "b.yaml", "b")

    watched(store, change, nothing)
    assert names(store) == ["a", "b"]
    assert "a.yaml:1: the file is larger than 1048576 bytes; split it." in store.problem


def test_last_good_versions_that_do_not_fit_the_new_files_keep_the_whole_set(folder: Path) -> None:
    store = opened(folder)
    before = store.current

    def change() -> None:
        write(folder / "a.yaml", "other", "objekt")
        write(folder / "A.yaml", "a")

    watched(store, change, nothing)
    assert store.current is before
    assert "the folder has changed and was rejected: " in store.problem


def test_in_together_mode_nothing_changes_until_all_files_can_be_loaded(folder: Path) -> None:
    store = opened(folder, together=True)

    def change() -> None:
        write(folder / "a.yaml", "a", "objekt")
        write(folder / "b.yaml", "b")

    watched(store, change, nothing)
    assert names(store) == ["a"]
    watched(store, lambda: write(folder / "a.yaml", "a"), nothing)
    assert names(store) == ["a", "b"]
