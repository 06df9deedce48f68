"""What README.md prints is what its examples print, and its table has the limits."""

import contextlib
import dataclasses
import io
import re
from pathlib import Path

import pytest

from kubecel import budget

TEXT = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```\n\n```\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
TABLE = re.findall(r"^\|.*\| `(\w+)` \|([^|]+)\|([^|]+)\|([^|]+)\|$", TEXT, re.MULTILINE)
PURPOSES = (budget.SELECTOR_LIMITS, budget.POLICY_LIMITS, budget.MATCH_CONDITION_LIMITS)


def test_the_examples_print_what_the_page_says() -> None:
    """Each goes on where the one before it ends."""
    names: dict[str, object] = {}
    for code, expected in EXAMPLES:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, names)  # noqa: S102 - the page's own code
        assert printed.getvalue() == expected
    assert len(EXAMPLES) == 2


@pytest.mark.parametrize("field", [each.name for each in dataclasses.fields(budget.Limits)])
def test_the_table_has_the_limits(field: str) -> None:
    [cells] = [cells for name, *cells in TABLE if name == field]
    assert [float(cell.replace(",", "")) for cell in cells] == [getattr(each, field) for each in PURPOSES]
