"""The output in docs/how-to/rehearse.md is what the program prints, and the page names every cause."""

import re
from pathlib import Path

from commands.rehearse import rehearsing
from commands.rehearse.fitting import as_text as fit_text
from commands.rehearse.fitting import fits, pod_of
from commands.rehearse.model import Rehearsal, WaitCause
from commands.rehearse.render import as_text
from runtime.console import Style
from tests.support.rehearsing import Object, budget, driver_nodes, gathered, node, pods, rehearsal

PAGE = (Path(__file__).parents[3] / "docs/how-to/rehearse.md").read_text()
BLOCKS = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
ORIGIN = "https://cluster.example"


def objects() -> list[Object]:
    """Two node groups of the plugin with three teams."""
    return [
        *(node(f"trn1-a-{number}", "trn1-a") for number in (1, 2)),
        node("trn1-b-1", "trn1-b"),
        *pods("serve", *["trn1-a-1"] * 3, namespace="team-a"),
        budget("serve", "team-a", maxUnavailable=1),
        *pods("train", "trn1-a-2", "trn1-b-1", count=8, namespace="team-b"),
        *pods("odd", "trn1-a-2", count=6, namespace="team-c"),
    ]


def printed(found: Rehearsal) -> str:
    return as_text(found, Style(width=100)).replace("of files,", f"of {ORIGIN},")


def test_the_rehearsal_on_the_page_equals_the_output_of_the_program() -> None:
    assert BLOCKS[0] == f"$ neuron-dra rehearse --context prod\n{printed(rehearsal(*objects()))}"


def test_the_fit_on_the_page_equals_the_output_of_the_program() -> None:
    made = gathered(*objects(), *driver_nodes("trn1-c-1"))
    answer = fits(made, [pod_of(16, ("trn1.32xlarge",), "default")])
    text = fit_text(answer, ORIGIN, (), Style(width=100))
    assert BLOCKS[1] == f"$ neuron-dra fit --count 16 --type trn1.32xlarge --context prod\n{text}"


def test_every_cause_is_on_the_page() -> None:
    told = set(re.findall(r"^\| ([^|]+?) +\|", PAGE, re.MULTILINE))
    assert {str(cause) for cause in WaitCause} <= told


def test_the_modules_of_the_package_are_in_its_docstring() -> None:
    package = Path(str(rehearsing.__file__)).parent
    told = (package / "__init__.py").read_text()
    modules = {path.stem for path in package.glob("*.py")} - {"__init__", "model"}
    assert [name for name in modules if f"`{name}`" not in told and not name.startswith("render_")] == []
