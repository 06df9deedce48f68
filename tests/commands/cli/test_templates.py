"""`neuron-dra templates`: output, exit codes, errors at start."""

import asyncio
import datetime as dt
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import Result

from commands.cli import templates as command
from runtime.watching import Timing
from tests.runtime.test_console import controls
from tests.support.fake_api import FakeApi, answer
from tests.support.generated import PLURAL, access, forbidden, pod_group, serve_groups, stored, template, templates_pod
from tests.support.invoking import invoke

FOUR, EIGHT = template(4).name, template(8).name


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with FakeApi().serve() as api:
        api.fault("create", "selfsubjectaccessreviews", access(), times=99)
        yield api


@pytest.fixture
def kubeconfig(api: FakeApi, tmp_path: Path) -> Path:
    return api.kubeconfig(tmp_path)


def put(api: FakeApi, *items: dict[str, Any]) -> None:
    """Store templates with an age of 3 days and 4 hours."""
    for item in items:
        created = dt.datetime.now(dt.UTC) - dt.timedelta(days=3, hours=4)
        item["metadata"]["creationTimestamp"] = created.strftime("%Y-%m-%dT%H:%M:%SZ")
        api.put(PLURAL, item)


async def run_templates(*arguments: str | Path) -> Result:
    return await asyncio.to_thread(invoke, "templates", *arguments)


async def test_a_list_shows_age_pods_and_groups(api: FakeApi, kubeconfig: Path) -> None:
    put(api, stored(4), stored(8, mark="2026-03-01T12:00:00.000000Z"))
    api.put("pods", templates_pod("a", FOUR))
    api.put("pods", templates_pod("b", FOUR))
    serve_groups(api)
    api.put("podgroups", pod_group("gang", FOUR))
    result = await run_templates("list", "--kubeconfig", kubeconfig)
    assert result.exit_code == 0
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["NAMESPACE", "NAME", "AGE", "PODS", "GROUPS", "PRUNE", "AFTER"],
        ["team", FOUR, "3d4h", "2", "1", "-"],
        ["team", EIGHT, "3d4h", "0", "0", "2026-03-01T12:00:00.000000Z"],
    ]


async def test_a_list_for_programs_names_pods_and_groups(api: FakeApi, kubeconfig: Path) -> None:
    put(api, stored(4), stored(4, "other"))
    api.put("pods", templates_pod("a", FOUR))
    serve_groups(api)
    api.put("podgroups", pod_group("gang", FOUR))
    result = await run_templates("list", "--kubeconfig", kubeconfig, "-n", "team", "-o", "json")
    [item] = json.loads(result.stdout)["templates"]
    assert dt.datetime.fromisoformat(item.pop("created")).tzinfo
    assert item == {"namespace": "team", "name": FOUR, "pods": ["a"], "groups": ["PodGroup gang"], "pruneAfter": ""}


async def test_an_empty_list_is_reported(kubeconfig: Path) -> None:
    assert (await run_templates("list", "--kubeconfig", kubeconfig, "-A")).stdout == "No generated templates.\n"


async def test_prune_lists_the_result_for_each_template(api: FakeApi, kubeconfig: Path) -> None:
    put(api, stored(4), stored(8))
    api.put("pods", templates_pod("a", FOUR))
    api.put(PLURAL, stored(2, age=dt.timedelta(days=-9999)))
    result = await run_templates("prune", "--kubeconfig", kubeconfig, "--grace", "0s")
    assert result.exit_code == 0
    assert result.stdout == (
        f"removed  team/{EIGHT}  (3d4h old)\n1 removed; of 3 generated templates 1 in use, 1 too young.\n"
    )
    assert result.stderr == "Marked 1; checking again in 0 s.\n"


async def test_prune_prints_json_for_programs(api: FakeApi, kubeconfig: Path) -> None:
    put(api, stored(4))
    result = await run_templates("prune", "--kubeconfig", kubeconfig, "--grace=0s", "-o", "json")
    report = json.loads(result.stdout)
    assert [(each["name"], each["outcome"], each["detail"]) for each in report["templates"]] == [(FOUR, "removed", "")]
    assert (report["summary"]["removed"], report["summary"]["generated"], report["problem"]) == (1, 1, "")


async def test_a_dry_run_lists_the_templates_that_prune_would_remove(api: FakeApi, kubeconfig: Path) -> None:
    put(api, stored(4))
    result = await run_templates("prune", "--kubeconfig", kubeconfig, "--dry-run")
    assert result.stdout.startswith(f"would be removed  team/{FOUR}  (3d4h old)\n1 would be removed; of 1 ")
    assert api.get(PLURAL, FOUR, "team")


async def test_prune_reports_that_there_is_nothing_to_remove(kubeconfig: Path) -> None:
    result = await run_templates("prune", "--kubeconfig", kubeconfig)
    assert result.stdout == "nothing to remove; of 0 generated templates 0 in use, 0 too young.\n"


async def test_a_failed_removal_exits_with_1(api: FakeApi, kubeconfig: Path) -> None:
    put(api, stored(4))
    api.fault("delete", PLURAL, answer(403, "Forbidden", forbidden("delete")))
    result = await run_templates("prune", "--kubeconfig", kubeconfig, "--grace=0s")
    assert result.exit_code == 1
    assert f'failed  team/{FOUR}  (3d4h old): could not be removed: "bob" lacks the rule' in result.stdout


async def test_a_run_that_loses_its_rights_exits_with_1(api: FakeApi, kubeconfig: Path) -> None:
    put(api, stored(4))

    async def marked(request: Any) -> Any:
        api.fault("list", "pods", answer(403, "Forbidden", "no"), times=9)
        return await api._patch(request, PLURAL, "team", FOUR)

    api.fault("patch", PLURAL, marked)
    result = await run_templates("prune", "--kubeconfig", kubeconfig, "--grace=0s")
    assert result.exit_code == 1
    assert "Nothing was removed; the next run continues with the marked templates." in result.stderr


@pytest.mark.parametrize("verb", ["list", "prune"])
async def test_a_missing_right_to_list_exits_with_2(api: FakeApi, kubeconfig: Path, verb: str) -> None:
    api.forbid("list", "pods")
    result = await run_templates(verb, "--kubeconfig", kubeconfig)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        'Error: Cannot list pods in all namespaces: "nobody" lacks the rule '
        '- {apiGroups: [""], resources: [pods], verbs: [list]}.\n'
    )


async def test_an_unusable_kubeconfig_exits_with_2(tmp_path: Path) -> None:
    result = await run_templates("prune", "--kubeconfig", tmp_path / "none")
    assert (result.exit_code, result.stderr) == (2, f"Error: cannot read {tmp_path}/none: No such file or directory\n")


@pytest.mark.parametrize("name", ["", "Team_A", "a" * 64])
@pytest.mark.parametrize("verb", ["list", "prune"])
async def test_an_invalid_namespace_is_refused_and_never_means_all(verb: str, name: str) -> None:
    result = await run_templates(verb, "-n", name)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"{name!r} is not a valid namespace name: use at most 63 characters of a-z, 0-9 and -." in result.stderr


async def test_namespace_and_all_namespaces_exclude_each_other() -> None:
    result = await run_templates("prune", "-n", "team", "-A")
    assert result.exit_code == 2
    assert "--namespace team and --all-namespaces cannot be combined: use one of them." in result.stderr


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0s", 0), ("90s", 90), ("24h", 86400), ("7d", 604800), ("1h30m", 5400), ("1d2h3m4s", 93784)],
)
def test_times_are_written_as_in_kubernetes(text: str, seconds: int) -> None:
    assert command.duration(text).total_seconds() == seconds


@pytest.mark.parametrize("text", ["", "24", "1.5h", "-1h", "30m1h", "day", " 1h", "1234567d", "٣h"])
def test_an_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter) as caught:
        command.duration(text)
    assert caught.value.message == f"{text!r} is not a duration. Examples: 24h, 7d, 90s, 1h30m."


def test_the_grace_outlasts_a_silent_watch_and_the_longest_request() -> None:
    longest_request = 60  # --request-timeout of kube-apiserver
    assert command.duration(command.GRACE).total_seconds() > Timing().stall + longest_request


@pytest.mark.parametrize("output", ["text", "json"])
async def test_an_annotation_does_not_control_the_terminal(api: FakeApi, kubeconfig: Path, output: str) -> None:
    mark = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e Fix: delete it"
    put(api, stored(8, mark=mark))
    result = await run_templates("list", "--kubeconfig", kubeconfig, "-o", output)
    assert not controls(result.stdout)
    if output == "json":
        assert json.loads(result.stdout)["templates"][0]["pruneAfter"] == mark
    else:
        assert "'\\u001b]0;owned\\u0007" in result.stdout
