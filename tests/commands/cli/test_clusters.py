"""Which cluster and namespace a command reads."""

import asyncio
from pathlib import Path

import click
import pytest

from commands.cli.clusters import CannotLookError, ClusterChoice, connected, namespace_name

CONTENT = """
current-context: a
contexts:
- {name: a, context: {cluster: c, user: u, namespace: team-a}}
- {name: b, context: {cluster: c, user: u}}
clusters: [{name: c, cluster: {server: "https://c.example"}}]
users: [{name: u, user: {token: secret}}]
"""


@pytest.fixture
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of $KUBECONFIG."""
    path = tmp_path / "config"
    path.write_text(CONTENT)
    monkeypatch.setenv("KUBECONFIG", str(path))
    return path


def address(cluster: ClusterChoice) -> str:
    async def open_one() -> str:
        async with connected(cluster, must_answer=False) as server:
            return server.address

    return asyncio.run(open_one())


@pytest.mark.usefixtures("kubeconfig")
def test_the_namespace_is_that_of_the_flag_or_of_the_context() -> None:
    assert ClusterChoice().namespace("mine") == "mine"
    assert ClusterChoice().namespace(None) == "team-a"
    assert ClusterChoice(context="b").namespace(None) == "default"


def test_a_kubeconfig_flag_overrides_the_variable(kubeconfig: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text(CONTENT.replace("c.example", "other.example").replace("team-a", "team-b"))
    assert address(ClusterChoice()) == "https://c.example"
    assert address(ClusterChoice(other)) == "https://other.example"
    assert ClusterChoice(other).namespace(None) == "team-b"
    assert [each.is_chosen for each in (ClusterChoice(), ClusterChoice(kubeconfig), ClusterChoice(context="b"))] == [
        False,
        True,
        True,
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(None, "cannot read {path}: No such file or directory", id="missing"),
        pytest.param("a: [", "kubeconfig {path} is not YAML: ", id="not YAML"),
    ],
)
def test_a_kubeconfig_that_names_no_namespace_is_an_error(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "config"
    if content is not None:
        path.write_text(content)
    with pytest.raises(CannotLookError) as caught:
        ClusterChoice(path).namespace(None)
    assert str(caught.value).startswith(message.format(path=path))


def test_a_missing_kubeconfig_is_an_error_with_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(CannotLookError, match=r"does not run in a cluster .*: give --kubeconfig or set \$KUBECONFIG"):
        address(ClusterChoice())
    with pytest.raises(CannotLookError, match=r"--context a needs a kubeconfig: give --kubeconfig or set \$KUBECONFIG"):
        address(ClusterChoice(context="a"))


@pytest.mark.parametrize("context", [None, "a"])
def test_files_of_the_variable_that_do_not_exist_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, context: str | None
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    one, other = tmp_path / "nowhere", tmp_path / "nowhere" / "else"
    monkeypatch.setenv("KUBECONFIG", str(one))
    with pytest.raises(CannotLookError) as caught:
        address(ClusterChoice(context=context))
    assert str(caught.value) == (
        f"$KUBECONFIG names the file {one}, which does not exist: correct it, or give --kubeconfig"
    )
    monkeypatch.setenv("KUBECONFIG", f"{one}:{other}")
    with pytest.raises(CannotLookError) as caught:
        address(ClusterChoice(context=context))
    assert f"names {one}, {other}, which do not exist" in str(caught.value)


def test_a_pod_with_a_variable_without_a_file_uses_its_service_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nowhere"))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert ClusterChoice().files == ()


@pytest.mark.parametrize("name", ["", "Team", "-a", "a" * 64])
def test_an_invalid_namespace_is_refused(name: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a valid namespace name"):
        namespace_name(name)
