"""The files by which containers name their claims: their names on the host, and as `/proc/PID/mountinfo` shows them.

Every CDI spec mounts one file for each request. Its name has the claim's UID, the request, and the number of the
preparation, which differs from that of earlier containers of the same claim.
"""

import dataclasses
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

SUFFIX: Final = ".json"
_PART: Final = re.compile(r"[A-Za-z0-9-]{1,63}", re.ASCII)
_NAME: Final = re.compile(r"([A-Za-z0-9-]{1,63})_([A-Za-z0-9-]{1,63})_([0-9]{1,18})\.json", re.ASCII)
"""Neither UIDs nor names of requests contain an underscore."""
_DELETED: Final = "//deleted"
"""What the kernel adds to the name of a file that is mounted and removed (d_path)."""
_ESCAPE: Final = re.compile(r"\\([0-7]{3})")
_OWN_MOUNTS: Final = Path("/proc/self/mountinfo")


@dataclasses.dataclass(frozen=True, slots=True)
class ClaimFile:
    """A file of a claim.

    Attributes:
        number: of the preparation (`PreparedClaim.number`).
    """

    uid: str
    request: str
    number: int

    @property
    def name(self) -> str:
        """The file's name. Raises ValueError for names that could point outside a directory."""
        for part in (self.uid, self.request):
            if not _PART.fullmatch(part):
                raise ValueError(f"{part!r} is neither the UID of a claim nor the name of a request.")
        return f"{self.uid}_{self.request}_{self.number}{SUFFIX}"


def read_name(name: str) -> ClaimFile | None:
    """The file of that name; None if it is no file of a claim."""
    match = _NAME.fullmatch(name)
    return ClaimFile(match[1], match[2], int(match[3])) if match else None


class Folder:
    """The folder of the files. A mount of any other file names no claim: pods choose what they mount from volumes."""

    def __init__(self, path: Path, own_mounts: Path = _OWN_MOUNTS) -> None:
        """`own_mounts` tells how the kernel names the folder in other mount namespaces."""
        self.path: Final = path
        self._own_mounts = own_mounts

    def mounted(self, mountinfo: str) -> frozenset[ClaimFile]:
        """The files that a mount namespace has, by its `mountinfo` (proc(5))."""
        if f"/{self.path.name}/" not in mountinfo:
            return frozenset()
        places = {str(self.path), *self._seen_from_outside()}
        return frozenset(self._files(mountinfo, places))

    def _files(self, mountinfo: str, places: set[str]) -> Iterator[ClaimFile]:
        for root, _ in _roots(mountinfo):
            directory, _, name = root.removesuffix(_DELETED).rpartition("/")
            if directory in places and (file := read_name(name)) is not None:
                yield file

    def _seen_from_outside(self) -> Iterator[str]:
        """The folder's path within its file system: mountinfo names the sources of mounts in this way."""
        try:
            mounts = list(_roots(self._own_mounts.read_text(errors="replace")))
        except OSError:
            return
        path = os.path.realpath(self.path)
        # Of several mounts at one place, the last hides the others.
        around = [(len(point), number) for number, (_, point) in enumerate(mounts) if _is_below(path, point)]
        if around:
            root, point = mounts[max(around)[1]]
            yield os.path.normpath(f"{root}/{path[len(point.rstrip('/')) :]}").replace("//", "/")


def _roots(mountinfo: str) -> Iterator[tuple[str, str]]:
    """Of each mount, its root within the file system and its place."""
    for line in mountinfo.splitlines():
        fields = line.split(" ", 5)
        if len(fields) > 5:
            yield _unescaped(fields[3]), _unescaped(fields[4])


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)


def _is_below(path: str, point: str) -> bool:
    return point == "/" or path == point or path.startswith(f"{point}/")
