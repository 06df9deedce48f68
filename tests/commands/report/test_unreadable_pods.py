from pathlib import Path

import pytest

from tests.support.invoking import invoke

POD = """\
apiVersion: v1
kind: Pod
metadata: {{name: odd}}
spec:
  containers:
  - name: a
    resources: {{{field}}}
"""


@pytest.mark.parametrize("field", ["limits: x", "limits: [x]", "requests: 7", "claims: x"])
@pytest.mark.parametrize("command", ["validate", "explain", "convert", "report"])
def test_a_value_of_a_wrong_type_is_reported_by_every_command(tmp_path: Path, command: str, field: str) -> None:
    """The report, too, although the pod names no Neuron resource: it may be meant to."""
    (tmp_path / "pod.yaml").write_text(POD.format(field=field))
    result = invoke(command, "-f", tmp_path / "pod.yaml")
    assert result.exit_code == 1, result.output
    assert "NEU114" in result.output
