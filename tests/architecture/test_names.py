"""One name, one meaning, one home: no two classes have the same name."""

import ast
from collections import defaultdict
from pathlib import Path

from tests.architecture.walks import PACKAGES, ROOT


def classes(path: Path) -> list[str]:
    return [node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)]


def test_no_class_name_stands_twice() -> None:
    homes = defaultdict(list)
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for name in classes(path):
                homes[name].append(path.relative_to(ROOT).as_posix())
    assert {name: places for name, places in homes.items() if len(places) > 1} == {}
