"""Each folder of tests/golden/convert: a manifest, its converted form, the messages, and the exit code."""

import re
from pathlib import Path

import pytest
import yaml

from tests.support.invoking import invoke
from tests.support.trainium import ENVIRONMENT

ROOT = Path(__file__).parents[2] / "golden" / "convert"
CASES = sorted(folder.name for folder in ROOT.iterdir())


def convert_case(case: str, *arguments: str, text: str | None = None) -> tuple[str, str]:
    """Standard output, and the messages with the exit code as their last line."""
    given = (ROOT / case / "input.yaml").read_text() if text is None else text
    options = ("convert", "--families", "trn2", "--strict", "-f", "-")
    done = invoke(*options, *arguments, stdin=given, environment=ENVIRONMENT)
    return done.stdout, f"{done.stderr.replace('<stdin>', 'input.yaml')}exit {done.exit_code}\n"


@pytest.mark.parametrize("case", CASES)
def test_converting_a_manifest_gives_its_golden_files(case: str) -> None:
    assert convert_case(case) == (
        (ROOT / case / "expected.yaml").read_text(),
        (ROOT / case / "expected.txt").read_text(),
    )


@pytest.mark.parametrize("case", CASES)
def test_converting_a_golden_file_changes_nothing(case: str) -> None:
    expected = (ROOT / case / "expected.yaml").read_text()
    assert convert_case(case, text=expected)[0] == expected


@pytest.mark.parametrize("case", CASES)
def test_no_comment_is_lost(case: str) -> None:
    comments = re.findall(r"#.*", (ROOT / case / "input.yaml").read_text())
    assert sorted(re.findall(r"#.*", (ROOT / case / "expected.yaml").read_text())) == sorted(comments)


@pytest.mark.parametrize("case", CASES)
def test_claims_templates_and_classes_are_written_as_v1(case: str) -> None:
    for found in yaml.safe_load_all((ROOT / case / "expected.yaml").read_text()):
        text = yaml.safe_dump(found)
        assert "resource.k8s.io/v1beta" not in text
        assert "v1alphav1" not in text


@pytest.mark.parametrize("case", [each for each in CASES if "left" in (ROOT / each / "expected.txt").read_text()])
def test_unconverted_objects_fail_only_a_strict_run(case: str) -> None:
    given = (ROOT / case / "input.yaml").read_text()
    done = invoke("convert", "--families", "trn2", "-f", "-", stdin=given, environment=ENVIRONMENT)
    assert done.exit_code == 0
    assert "--strict" not in done.stderr


@pytest.mark.parametrize(
    "case",
    ["kserve-inference-service", "knative-service", "spark-application", "train-job", "unknown-kind"],
)
def test_an_object_that_is_not_rewritten_is_reported_with_the_consequence(case: str) -> None:
    _, told = convert_case(case)
    assert re.search(r"NEU220: the \w+ is left as it is: .+\. The webhook converts its pods when they are", told)
