"""The stand-in runtime reads a spec file once, and again as soon as it is another one."""

import json
import os
from pathlib import Path

import pytest

from tests.cluster.cdi import Edits, resolve, specs

ID = "k8s.example.com/claim=x"


def write_spec(path: Path, value: str) -> None:
    devices = [{"name": "x", "containerEdits": {"env": [f"A={value}"]}}]
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps({"cdiVersion": "0.6.0", "kind": "k8s.example.com/claim", "devices": devices}))
    temporary.replace(path)


def test_a_spec_is_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_spec(tmp_path / "a.json", "1")
    first = specs(tmp_path)
    monkeypatch.setattr(json, "loads", None)
    assert specs(tmp_path) == first


@pytest.mark.parametrize("value", ["2", "a longer one"])
def test_a_spec_that_was_replaced_is_read_again(tmp_path: Path, value: str) -> None:
    path = tmp_path / "a.json"
    write_spec(path, "1")
    times = path.stat()
    assert resolve(tmp_path, [ID], Edits()).env == {"A": "1"}
    write_spec(path, value)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert resolve(tmp_path, [ID], Edits()).env == {"A": value}
    path.unlink()
    assert specs(tmp_path) == []
