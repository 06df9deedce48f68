"""A key that stands twice: kubectl takes the last value, and so do all commands, with a warning."""

import json
import re
from pathlib import Path

import pytest

from commands.objects.text_edits import apply
from commands.rewrite.yaml_edits import edit
from runtime.yaml_nodes import Mapping_, compose
from tests.support.invoking import invoke

POD = """\
apiVersion: v1
kind: Pod
metadata: {name: twice}
spec:
  # first
  containers:
  - name: a
    image: one
    resources: {limits: {aws.amazon.com/neuron: 7}}
  # second
  containers:
  - name: a
    image: two   # kept
    resources:
      limits:
        aws.amazon.com/neuron: 16
        aws.amazon.com/neuron: 1
"""
SAID = re.compile(r"the key 'containers' stands\s+twice\s+in lines 6 and 11, with\s+\[\{")


def run_for_inf2(*words: str) -> tuple[int, str]:
    result = invoke(*words, "--families", "inf2")
    return result.exit_code, result.output


@pytest.mark.parametrize(
    "command", [["validate"], ["explain"], ["convert", "-o", "yaml"], ["report"]], ids=lambda each: each[0]
)
def test_every_command_reads_the_last_value_and_warns(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "pod.yaml").write_text(POD)
    code, output = run_for_inf2(*command, "-f", str(tmp_path / "pod.yaml"))
    assert code == 0, output
    assert output.count("NEU717") >= 2, output
    assert SAID.search(output), output


def test_a_converted_text_has_the_key_once_and_keeps_its_comments(tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_text(POD)
    _, output = run_for_inf2("convert", "-o", "yaml", "-f", str(tmp_path / "pod.yaml"))
    pod = output.rpartition("---\n")[2]
    assert pod.count("containers:") == 1
    assert "image: two   # kept" in pod
    assert "image: one" not in pod
    assert "aws.amazon.com/neuron: 1" not in pod


def test_an_object_that_is_not_ours_is_warned_of_and_stays_as_it_is(tmp_path: Path) -> None:
    text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c, name: d}\ndata: {a: '1'}\n"
    (tmp_path / "map.yaml").write_text(text)
    code, output = run_for_inf2("validate", "-f", str(tmp_path / "map.yaml"))
    assert code == 0
    assert "map.yaml:3: warning NEU717 ConfigMap d: metadata.name" in output
    assert run_for_inf2("convert", "-o", "yaml", "-f", str(tmp_path / "map.yaml"))[1].endswith(text)


def test_json_of_any_escapes_is_read_the_same_way(tmp_path: Path) -> None:
    (tmp_path / "map.json").write_text('{"apiVersion": "v1", "kind": "ConfigMap", "x": "\\ud83d\\ude00", "x": 2}')
    code, output = run_for_inf2("validate", "-f", str(tmp_path / "map.json"))
    assert code == 0
    assert "NEU717" in output
    assert '"\U0001f600" and 2' in output


def test_each_object_of_a_list_has_its_own_warning(tmp_path: Path) -> None:
    items = "".join(
        f"- {{apiVersion: v1, kind: ConfigMap, metadata: {{name: m{n}}}, data: {{a: x, a: '{n}'}}}}\n" for n in (1, 2)
    )
    (tmp_path / "list.yaml").write_text(f"apiVersion: v1\nkind: List\nitems:\n{items}")
    _, output = run_for_inf2("validate", "-o", "json", "-f", str(tmp_path / "list.yaml"))
    found = json.loads(output.partition("\n0 errors")[0])["findings"]
    assert [(each["object"], each["path"], each["value"]) for each in found] == [
        ("ConfigMap m1", "data.a", '"1"'),
        ("ConfigMap m2", "data.a", '"2"'),
    ]


@pytest.mark.parametrize(
    ("text", "wanted", "result"),
    [
        ("a: 1\nb: 2\na: 3\n", {"b": 2, "a": 4}, "b: 2\na: 4\n"),
        ("a: 1\na: 3\nb: 2\n", {"b": 2}, "b: 2\n"),
        ("x: {a: 1, a: 2}\nz: 1\n", {"x": {"a": 3}, "z": 1}, "x: {a: 3}\nz: 1\n"),
        ("x:\n- a: 1\n  a: 2\n  b: 3\n", {"x": [{"a": 2, "b": 4}]}, "x:\n- a: 2\n  b: 4\n"),
    ],
    ids=["changed", "removed", "flow", "in-an-item"],
)
def test_an_edit_removes_what_does_not_count(text: str, wanted: object, result: str) -> None:
    repeated: list[Mapping_] = []
    root = compose(text, repeated=repeated)
    assert root is not None
    assert apply(text, edit(text, root, wanted)) == result
