"""The attacks are valid reviews that differ from each other and grow with their size."""

from tests.attacks import arsenal


def test_names_are_unique() -> None:
    names = list(arsenal.ids())
    assert len(names) == len(set(names))
