"""A file is given as an argument as well as with -f; what is about the whole run is said once."""

import json
from pathlib import Path

import pytest

from tests.support.invoking import invoke_offline

ROOT = Path(__file__).resolve().parents[3]
POD = (
    "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  containers:\n"
    "    - {{name: a, image: i, resources: {{limits: {{aws.amazon.com/neuron: {count}}}}}}}\n"
)
POLICY = (
    "apiVersion: policy.neuron.aws.com/v1alpha1\nkind: ValidatingPolicy\nmetadata: {name: few}\n"
    "spec:\n  matchConstraints:\n    resourceRules:\n"
    "      - {apiGroups: [''], apiVersions: [v1], operations: [CREATE], resources: [pods]}\n"
    "  validations: [{expression: 'neuron.devices <= 2', message: too many}]\n"
)
COMMANDS = {
    "convert": ["convert"],
    "validate": ["validate"],
    "explain": ["explain"],
    "report": ["report", "-o", "sarif"],
    "policy explain": ["policy", "explain", "--policies", "policies"],
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies/few.yaml").write_text(POLICY)
    (tmp_path / "manifests").mkdir()
    for name in ("train.yaml", "manifests/train.json", "manifests/pod"):
        (tmp_path / name).write_text(POD.format(name="train", count=4))
    return tmp_path


@pytest.mark.parametrize(
    "given", ["train.yaml", "./train.yaml", "manifests", "manifests/train.json", "manifests/pod", "-"]
)
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_a_file_is_an_argument_as_well(command: list[str], given: str) -> None:
    stdin = POD.format(name="train", count=4)
    by_flag, by_argument = (invoke_offline(*command, *way, stdin=stdin) for way in (["-f", given], [given]))
    assert by_flag.output == by_argument.output
    assert by_flag.exit_code == by_argument.exit_code
    assert "train" in by_argument.output


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_a_missing_file_is_named(command: list[str]) -> None:
    done = invoke_offline(*command, "nowhere.yaml")
    assert done.exit_code == 2
    assert "nowhere.yaml" in done.output
    assert "No such file" in done.output


def test_the_map_takes_files_and_nodes() -> None:
    objects = str(ROOT / "docs" / "map-cluster.json")
    whole = invoke_offline("map", objects, "-o", "wide")
    assert whole.exit_code == 0, whole.output
    one = invoke_offline("map", "trn2-a", objects, "-o", "wide")
    assert one.output == invoke_offline("map", "-f", objects, "trn2-a", "-o", "wide").output
    assert "--serve reads a cluster" in invoke_offline("map", "--serve", objects).output


@pytest.mark.parametrize("words", [["pod/train"], ["pod", "train"], ["deployment/web.yaml"]])
def test_names_of_the_cluster_stay_names(folder: Path, words: list[str]) -> None:
    (folder / "pod").mkdir()
    (folder / "deployment").mkdir()
    done = invoke_offline("explain", *words)
    assert done.exit_code == 2
    assert "kubeconfig /dev/null cannot be used" in done.output


def test_a_file_below_a_folder_with_the_name_of_a_type(folder: Path) -> None:
    (folder / "pod").mkdir()
    (folder / "pod/train.yaml").write_text(POD.format(name="inside", count=4))
    assert "Pod inside" in invoke_offline("explain", "pod/train.yaml").output


def test_a_strict_run_names_each_object_that_is_left(folder: Path) -> None:
    off = "apiVersion: v1\nkind: Namespace\nmetadata: {name: default, annotations: {neuron.aws.com/convert: 'off'}}\n"
    pods = "".join(f"---\n{POD.format(name=name, count=4)}" for name in ("one", "two", "three"))
    (folder / "left.yaml").write_text(off + pods)
    done = invoke_offline("convert", "left.yaml", "--strict")
    assert done.exit_code == 1
    for name in ("one", "two", "three"):
        assert f", Pod {name}]: it is left with Neuron limits (--strict)." in done.stderr
    assert done.stderr.endswith("3 objects left unchanged with Neuron limits (--strict).\n")
    plain = invoke_offline("convert", "left.yaml")
    assert (plain.exit_code, "--strict" in plain.stderr) == (0, False)


@pytest.mark.parametrize("count", [1, 40])
def test_a_warning_about_the_run_is_said_once(folder: Path, count: int) -> None:
    for at in range(count):
        # Another number of devices is another text: documents that differ in names only are judged once.
        (folder / "manifests" / f"{at}.yaml").write_text(POD.format(name=f"p{at}", count=(1, 4, 8, 16)[at % 4]))
    assert invoke_offline("convert", "manifests").stderr.count("NEU216") == 1
    assert invoke_offline("validate", "manifests").output.count("NEU216") == 1
    found = json.loads(invoke_offline("validate", "manifests", "-o", "json").stdout)
    assert [each["code"] for each in found["findings"]].count("NEU216") == 1
    assert found["summary"]["warnings"] == len(found["findings"])
    assert "NEU216" not in invoke_offline("convert", "manifests", "--families", "trn2").stderr


def test_sarif_links_codes_to_the_book(folder: Path) -> None:
    def rules(*arguments: str) -> list[dict[str, object]]:
        [log] = json.loads(invoke_offline(*arguments, "manifests", "-o", "sarif").stdout)["runs"]
        found: list[dict[str, object]] = log["tool"]["driver"]["rules"]
        return found

    for command in ("validate", "report"):
        [rule] = [
            each for each in rules(command, "--docs-url", "https://docs.example.com/x/") if each["id"] == "NEU216"
        ]
        assert rule["helpUri"] == "https://docs.example.com/x/errors.html#neu216"
        assert all("helpUri" not in each for each in rules(command))
        assert all("neuron-dra explain NEU" in str(each["help"]) for each in rules(command))
    done = invoke_offline("validate", "manifests", "-o", "sarif", "--docs-url", "docs")
    assert done.exit_code == 2
    assert "'docs' is not an address such as https://" in done.output
