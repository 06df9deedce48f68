import json
from pathlib import Path

import pytest

from tests.support import golden


@pytest.mark.parametrize("case", golden.cases(), ids=lambda case: case.name)
def test_a_review_gives_the_golden_files_of_its_folder(case: Path) -> None:
    for name, actual in golden.outcome(case).items():
        assert actual == json.loads((case / name).read_text()), name
