"""Every command reads regular files only, and none out of the folder that it is given."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.invoking import invoke_offline

POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: a, image: i}]}\n"
COMMANDS = {
    "convert": ["convert", "-f"],
    "validate": ["validate", "-f"],
    "report": ["report", "-f"],
}


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _link_to_fifo(path: Path) -> None:
    os.mkfifo(path.with_suffix(".pipe"))
    path.symlink_to(path.with_suffix(".pipe"))


def _socket(path: Path) -> None:
    os.mknod(path, stat.S_IFSOCK | 0o600)


def _link_out(path: Path) -> None:
    outside = path.parents[1] / "secret.yaml"
    outside.write_text("password: very-secret\n")
    path.symlink_to(outside)


MAKERS = {"fifo": _fifo, "device": _device, "link to a fifo": _link_to_fifo, "socket": _socket, "link out": _link_out}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_what_is_no_regular_file_of_a_folder_is_an_error(
    tmp_path: Path, command: list[str], make: Callable[[Path], None]
) -> None:
    folder = tmp_path / "manifests"
    folder.mkdir()
    (folder / "a.yaml").write_text(POD)
    make(folder / "b.yaml")
    result = invoke_offline(*command, str(folder))
    assert result.exit_code == 2, result.output
    assert "b.yaml" in result.output
    assert "regular file" in result.output or "link out of the folder" in result.output
    assert "very-secret" not in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize("make", [_device, _socket], ids=["device", "socket"])
@pytest.mark.parametrize("command", [*COMMANDS.values(), ["map", "-f"]], ids=[*COMMANDS, "map"])
def test_a_device_or_socket_that_is_named_is_an_error(
    tmp_path: Path, command: list[str], make: Callable[[Path], None]
) -> None:
    make(tmp_path / "b.yaml")
    result = invoke_offline(*command, str(tmp_path / "b.yaml"))
    assert result.exit_code == 2, result.output
    assert "it is not a regular file" in result.output
    assert isinstance(result.exception, SystemExit)
