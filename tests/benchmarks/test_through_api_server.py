"""What the table of pods through a real API server shows."""

import pytest

from benchmarks.load import Measured
from benchmarks.through_api_server import cpu_ratio, rate_ratio


def turn(rps: float, cpu: float = 0.005, webhook: float = 0.001) -> Measured:
    return Measured(rps=rps, p50=0, p95=0, p99=0, cpu=cpu, answered=1, other_cpu=webhook)


def test_cpu_is_that_of_api_server_and_webhook() -> None:
    base = [turn(100)] * 3
    assert cpu_ratio([turn(100, 0.0053)] * 3, base) == "1.05 (1.05-1.05)"
    assert cpu_ratio([turn(100, webhook=0.0013)] * 3, base) == "1.05 (1.05-1.05)"
    assert cpu_ratio([turn(100)], [turn(100)]) == "1.00 (1.00-1.00)"


@pytest.mark.parametrize(
    ("rates", "shown"),
    [([50, 52, 54], "0.52 (0.51-0.53)"), ([80, 95, 120], "-"), ([96, 97, 98], "0.97 (0.96-0.97)")],
    ids=["clear", "scattered", "small-but-clear"],
)
def test_a_rate_is_shown_only_if_its_scatter_is_smaller_than_the_difference(rates: list[float], shown: str) -> None:
    assert rate_ratio([turn(rate) for rate in rates], [turn(100)] * 3) == shown


def test_the_reference_has_the_ratio_one() -> None:
    base = [turn(80), turn(120)]
    assert rate_ratio(base, base) == "1.00 (1.00-1.00)"
