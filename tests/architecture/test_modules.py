"""One name, one meaning, one home: what the modules of each room hold."""

import ast
from collections import defaultdict
from pathlib import Path

import grimp

from tests.architecture.walks import ROOT
from tests.support.packages import PACKAGES


def classes(path: Path) -> list[str]:
    return [node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)]


def test_no_class_name_stands_twice() -> None:
    homes = defaultdict(list)
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for name in classes(path):
                homes[name].append(path.relative_to(ROOT).as_posix())
    assert {name: places for name, places in homes.items() if len(places) > 1} == {}


def test_the_service_imports_every_module_of_its_house() -> None:
    """What only commands use stands in `commands/`."""
    graph = grimp.build_graph("webhook", cache_dir=None)
    packages = {module for module in graph.modules if graph.find_children(module)}
    used = graph.find_upstream_modules("webhook.__main__")
    assert graph.modules - packages - used == {"webhook.__main__"}
