"""The references in Go: without a toolchain, and with one that fails, the benchmark says so and goes on."""

from pathlib import Path

import pytest

from benchmarks import servers


@pytest.mark.parametrize(
    ("compiler", "said"),
    [
        pytest.param("", "no Go toolchain (install go, or set NEURON_DRA_GO to its path)", id="none"),
        pytest.param("/bin/false", "/bin/false build failed", id="fails"),
    ],
)
def test_without_a_go_toolchain_the_benchmark_says_why(
    compiler: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NEURON_DRA_GO", compiler)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert servers.go_references(tmp_path) is None
    assert capsys.readouterr().out.startswith(f"without the references in Go: {said}")
