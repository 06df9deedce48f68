"""Kubeconfig files are found and merged as kubectl does it."""

from pathlib import Path

import pytest
import yaml

from runtime import kubeconfigs
from runtime.api_server import ClusterUnavailableError
from runtime.api_transport import load_configuration


def kubeconfig(path: Path, current: str = "", **contexts: str) -> Path:
    """A file with contexts by name, each with a namespace and a cluster of the context's name."""
    content = {
        "contexts": [
            {"name": name, "context": {"cluster": name, "user": "u", "namespace": namespace}}
            for name, namespace in contexts.items()
        ],
        "clusters": [{"name": name, "cluster": {"server": f"https://{name}.example"}} for name in contexts],
        "users": [{"name": "u", "user": {"token": "secret"}}],
    }
    path.write_text(yaml.safe_dump(content | ({"current-context": current} if current else {})))
    return path


def test_the_files_are_those_that_kubectl_would_take(tmp_path: Path) -> None:
    home = tmp_path / ".kube" / "config"
    environment = {"HOME": str(tmp_path)}
    assert kubeconfigs.find(environment) == ()
    home.parent.mkdir()
    home.touch()
    assert kubeconfigs.find(environment) == (home,)
    one, two = tmp_path / "one", tmp_path / "two"
    one.touch()
    two.touch()
    environment["KUBECONFIG"] = f"{tmp_path / 'nowhere'}:{one}:{two}:{one}"
    assert kubeconfigs.find(environment) == (one, two)
    assert kubeconfigs.find(environment | {"KUBECONFIG": str(tmp_path / "nowhere")}) == ()
    assert kubeconfigs.find({}) == ()


def test_a_tilde_in_the_variable_is_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "config").touch()
    assert kubeconfigs.find({"KUBECONFIG": "~/config"}) == (tmp_path / "config",)


def test_the_first_file_with_a_current_context_decides(tmp_path: Path) -> None:
    none = kubeconfig(tmp_path / "none", extra="e")
    first = kubeconfig(tmp_path / "first", "a", a="team-a")
    second = kubeconfig(tmp_path / "second", "b", a="other", b="team-b")
    files = (none, first, second)
    assert kubeconfigs.current_context(files) == "a"
    assert kubeconfigs.context_names(files) == ("extra", "a", "b")
    assert kubeconfigs.namespace(files, None) == "team-a"
    assert kubeconfigs.namespace(files, "b") == "team-b"
    assert kubeconfigs.namespace(files, "c") == "default"


def test_a_context_without_namespace_means_default(tmp_path: Path) -> None:
    assert kubeconfigs.namespace((kubeconfig(tmp_path / "one", "a", a=""),), None) == "default"


def test_the_default_namespace_in_a_pod_is_that_of_the_pod(tmp_path: Path) -> None:
    inside = tmp_path / "namespace"
    assert kubeconfigs.namespace((), None, inside) == "default"
    inside.write_text("neuron-dra\n")
    assert kubeconfigs.namespace((), None, inside) == "neuron-dra"


@pytest.mark.parametrize("content", ["", "[]", "contexts: 1", "contexts: [1, {name: a}, {name: a, context: 3}]"])
def test_an_invalid_kubeconfig_gives_no_context(tmp_path: Path, content: str) -> None:
    path = tmp_path / "config"
    path.write_text(content)
    assert kubeconfigs.namespace((path,), "a") == "default"
    assert kubeconfigs.current_context((path,)) == ""


async def test_the_client_connects_to_the_cluster_of_the_first_current_context(tmp_path: Path) -> None:
    files = (kubeconfig(tmp_path / "first", "a", a="x"), kubeconfig(tmp_path / "second", "b", b="y"))
    assert (await load_configuration(files)).host == "https://a.example"
    assert (await load_configuration(files, "b")).host == "https://b.example"
    with pytest.raises(ClusterUnavailableError) as caught:
        await load_configuration(files, "c")
    assert str(caught.value) == f"kubeconfig {files[0]}, {files[1]} has no context 'c': use one of a, b"
