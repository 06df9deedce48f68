"""Files of other programs are read with limits of size and type."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from runtime.files import NotRegularError, OutsideError, TooLargeError, open_regular, read_regular


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        # The address of a socket has at most 107 bytes: shorter from inside its directory.
        before = os.open(".", os.O_RDONLY)
        os.chdir(path.parent)
        try:
            listener.bind(path.name)
        finally:
            os.fchdir(before)
            os.close(before)


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [_fifo, _socket, _device], ids=["fifo", "socket", "device"])
def test_special_files_are_refused_without_blocking(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "tls.key"
    make(path)
    with pytest.raises(NotRegularError) as caught:
        read_regular(path)
    assert caught.value.strerror == "it is not a regular file"
    assert caught.value.filename == str(path)


def test_a_file_that_becomes_a_fifo_between_check_and_open_does_not_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    regular, path = tmp_path / "regular", tmp_path / "tls.key"
    regular.write_bytes(b"key")
    os.mkfifo(path)
    status = regular.stat()
    monkeypatch.setattr(Path, "stat", lambda _: status)
    with pytest.raises(NotRegularError):
        read_regular(path)


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "ca.crt"
    path.write_bytes(b"x" * 200_000)
    assert read_regular(path, 200_000) == b"x" * 200_000
    with pytest.raises(TooLargeError, match="larger than 199999 bytes"):
        read_regular(path, 199_999)


def test_a_sparse_file_of_a_terabyte_takes_no_memory_and_no_time(tmp_path: Path) -> None:
    path = tmp_path / "ca.crt"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(TooLargeError):
        read_regular(path)


def test_a_file_without_a_size_is_read(tmp_path: Path) -> None:
    assert read_regular(Path("/proc/self/stat")).startswith(str(os.getpid()).encode())


def test_links_are_followed_as_in_a_mounted_secret(tmp_path: Path) -> None:
    (tmp_path / "..data").mkdir()
    (tmp_path / "..data" / "tls.crt").write_bytes(b"certificate")
    (tmp_path / "tls.crt").symlink_to("..data/tls.crt")
    assert read_regular(tmp_path / "tls.crt") == b"certificate"


def test_a_directory_raises_the_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError) as caught:
        read_regular(tmp_path)
    assert caught.value.strerror == "Is a directory"


def test_a_missing_file_raises_the_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "tls.crt")


def test_a_link_out_of_a_folder_is_refused(tmp_path: Path) -> None:
    inside, outside = tmp_path / "folder", tmp_path / "secret.yaml"
    (inside / "..data").mkdir(parents=True)
    (inside / "..data/pod.yaml").write_text("kind: Pod")
    outside.write_text("secret")
    (inside / "pod.yaml").symlink_to("..data/pod.yaml")  # as in a mounted ConfigMap
    with open_regular(inside / "pod.yaml", within=inside) as file:
        assert file.read() == b"kind: Pod"
    (inside / "link.yaml").symlink_to(outside)
    (inside / "loop.yaml").symlink_to("loop.yaml")
    with pytest.raises(OutsideError, match="it is a link out of the folder"):
        open_regular(inside / "link.yaml", within=inside)
    with pytest.raises(OSError, match="symbolic links"):
        open_regular(inside / "loop.yaml", within=inside)
