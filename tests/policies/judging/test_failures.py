"""The place of a failure, which is logged, never contains a value of the object."""

import pytest

from kubecel.errors import CelRuntimeError
from policies.judging.conditions import Failure

CONDITION = "match condition 'a' failed"
TYPE = "'x' is not an int"


@pytest.mark.parametrize(
    ("failure", "text", "place"),
    [
        (
            Failure.of(CONDITION, CelRuntimeError(TYPE, 3, "int(a)")),
            f"{CONDITION}: {TYPE} (line 1, column 4)",
            f"{CONDITION} (line 1, column 4)",
        ),
        (
            Failure.of(CONDITION, CelRuntimeError("no such key: x")).within("steer"),
            f"steer: {CONDITION}: no such key: x",
            f"steer: {CONDITION}",
        ),
        (
            Failure.of("expression 'int(a)\n> 3' resulted in error", CelRuntimeError("'x\ny: z' is not an int")),
            "expression 'int(a)\n> 3' resulted in error: 'x\ny: z' is not an int",
            "expression 'int(a)\n> 3' resulted in error",
        ),
        (
            Failure.of("messageExpression failed", CelRuntimeError("x (line 1, column 2) y")),
            "messageExpression failed: x (line 1, column 2) y",
            "messageExpression failed",
        ),
        (Failure("audit annotation 'k' is of type map, and has to be a string or null"),)
        + ("audit annotation 'k' is of type map, and has to be a string or null",) * 2,
    ],
    ids=["condition", "conversion", "lines", "position-in-a-value", "no-value"],
)
def test_the_place_leaves_out_the_engine_s_message(failure: Failure, text: str, place: str) -> None:
    assert (str(failure), failure.place) == (text, place)
