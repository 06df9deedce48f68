"""docs/architecture.md and its picture name every folder, and only existing files."""

import re
from pathlib import Path

from tests.support.packages import PACKAGES

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "architecture.md").read_text()
PICTURE = (ROOT / "docs" / "architecture.svg").read_text()
TREE = re.search(r"## The folders\n.*?```\n(.*?)```", TEXT, re.DOTALL)


def rooms() -> list[str]:
    """Folders with code below the packages, one level deep where a package has folders."""
    found = [f"{package}/" for package in PACKAGES]
    for package in (each for each in PACKAGES if each != "kubecel/kubecel"):
        found += [f"{each.parent.name}/" for each in (ROOT / package).glob("*/__init__.py")]
    return found


def test_every_room_is_in_the_tree() -> None:
    assert TREE is not None
    assert [room for room in rooms() if room not in TREE[1]] == []


def test_every_place_in_the_picture_and_the_text_exists() -> None:
    in_picture = re.findall(r">([a-z_]+/[a-z_./]*)<", PICTURE)
    in_text = re.findall(rf"`((?:{'|'.join(PACKAGES)})/[\w./]*)`", TEXT)
    assert in_picture
    assert in_text
    assert [place for place in (*in_picture, *in_text) if not (ROOT / place).exists()] == []
