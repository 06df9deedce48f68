"""docs/architecture.md and its picture name every folder, and only existing files."""

import re
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("room", rooms())
def test_every_room_is_in_the_tree(room: str) -> None:
    assert TREE is not None
    assert room in TREE[1]


@pytest.mark.parametrize("place", sorted(set(re.findall(r">([a-z_]+/[a-z_./]*)<", PICTURE))))
def test_every_place_in_the_picture_exists(place: str) -> None:
    assert (ROOT / place).exists()


IN_TEXT = re.compile(rf"`((?:{'|'.join(PACKAGES)})/[\w./]*)`")


@pytest.mark.parametrize("place", sorted(set(IN_TEXT.findall(TEXT))))
def test_every_place_in_the_text_exists(place: str) -> None:
    assert (ROOT / place).exists()
