"""What is logged of a policy that failed: its place, never a value."""

import pytest

from policies.judging.failures import place


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (
            "match condition 'a' failed: 'x' is not an int (line 1, column 4)",
            "match condition 'a' failed (line 1, column 4)",
        ),
        ("steer: match condition 'a' failed: no such key: x", "steer: match condition 'a' failed"),
        (
            "expression 'int(a)\n> 3' resulted in error: 'x\ny: z' is not an int",
            "expression 'int(a)\n> 3' resulted in error",
        ),
        ("messageExpression failed: x (line 1, column 2) y", "messageExpression failed"),
        ("audit annotation 'k' is of type map, and has to be a string or null",) * 2,
    ],
    ids=["condition", "conversion", "lines", "position-in-a-value", "no-value"],
)
def test_the_engine_s_words_are_left_out(error: str, shown: str) -> None:
    assert place(error) == shown
