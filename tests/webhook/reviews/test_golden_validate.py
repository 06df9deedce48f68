"""Whole answers of `/validate`, byte for byte as the API server gets them."""

import json
from pathlib import Path

import pytest

from tests.support.golden_validate import cases, response


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_the_answer_is_the_golden_one(case: Path) -> None:
    assert response(case) == json.loads((case / "response.json").read_text())


def test_there_are_cases() -> None:
    assert len(cases()) >= 12
