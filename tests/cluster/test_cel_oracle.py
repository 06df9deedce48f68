"""Random expressions have the same answers in the API server and here: a short run of `make cel-oracle`."""

import pytest

from kubecel_tests import oracle, record_answers
from kubecel_tests.random_expressions import Generator
from tests.cluster.controlplane import Assets

COUNT = 300

pytestmark = pytest.mark.needs("cel-lists")


def test_random_expressions_have_the_answers_of_the_api_server(assets: Assets) -> None:
    with record_answers.api_server(assets.folder) as client:
        expressions = Generator(20).expressions(COUNT)
        outcome = oracle.run(oracle.Server(client), expressions, seed=20, limits=12)
    assert outcome.answers.total() == COUNT
    assert outcome.answers["value"] > COUNT / 4
    assert outcome.limits - outcome.constants == 12
    assert outcome.constants
    assert not outcome.new, outcome.summary()
