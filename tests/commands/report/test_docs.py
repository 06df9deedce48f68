"""The output in docs/how-to/report.md is what the program prints, and the page names every part, fate and cause."""

import re
from pathlib import Path

from commands.report import build
from commands.report.model import Cause, Fate, Report, Shadowed
from commands.report.render import as_text
from runtime.console import Style
from tests.policies.policy_files import policy
from tests.support.reports import Object, deployment, owned, report, running, three_nodes

PAGE = (Path(__file__).parents[3] / "docs/how-to/report.md").read_text()
BLOCKS = re.findall(r"```(?:console|yaml)\n(.*?)```", PAGE, re.DOTALL)
WIDTH = 80


def of_namespace(kind: str, name: str, namespace: str, **spec: object) -> Object:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": namespace}, "spec": spec}


def cluster() -> Report:
    """Three namespaces on two nodes of the device plugin, and one node of the driver."""
    serve = deployment("serve", namespace="team-a", replicas=2)
    train = deployment("train", 8, namespace="team-b", replicas=3)
    train["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "training"}
    odd = deployment("odd", 6, namespace="team-c")
    pods = [owned(running(f"serve-{at}", "node-1", namespace="team-a"), serve) for at in (1, 2)]
    pods += [owned(running(f"train-{at}", "node-2", namespace="team-b", count=8), train) for at in (1, 2)]
    return report(
        of_namespace("ResourceQuota", "devices", "team-b", hard={"requests.aws.amazon.com/neuron": "32"}),
        *(serve, train, odd, *pods),
        policies=[policy('validations: [{expression: "neuron.devices <= 16", message: too many devices}]')],
        cluster=three_nodes(),
        shadowed=(Shadowed("team-a", "serve-5d8f-", "would-be-converted", (), 2),),
        families=("trn1",),
    )


def test_the_report_on_the_page_equals_the_output_of_the_program() -> None:
    printed = as_text(cluster(), Style(width=WIDTH))
    printed = printed.replace("of manifests", "of https://cluster.example")
    assert BLOCKS[0] == f"$ neuron-dra report --context prod --policies policies/\n{printed}"


def test_every_fate_and_every_cause_is_on_the_page() -> None:
    told = set(re.findall(r"^\| ([^|]+?) +\|", PAGE, re.MULTILINE))
    assert {str(cause) for cause in Cause} <= told
    assert {f"`{fate}`" for fate in Fate} <= set(re.findall(r"`[a-z]+`", PAGE))


def test_the_modules_of_the_package_are_in_its_docstring() -> None:
    package = Path(str(build.__file__)).parent
    told = (package / "__init__.py").read_text()
    modules = {path.stem for path in package.glob("*.py")} - {"__init__", "model", "tables"}
    assert [name for name in modules if name not in told and not name.startswith("render_")] == []
