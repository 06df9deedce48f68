"""`neuron-dra explain` against the real scheduler: whether a pod fits, and which devices it gets.

NEURON_DRA_EXPLAIN_CASES sets how many cases; the default keeps the file short enough for every run.
"""

import logging
import os
from typing import Final

import pytest

from tests.cluster.api import Api
from tests.cluster.foretelling import Foretelling
from tests.cluster.nodes import Fleet

CASES: Final = int(os.environ.get("NEURON_DRA_EXPLAIN_CASES", "15"))

log = logging.getLogger(__name__)


@pytest.fixture
def foretelling(api: Api, namespace: str, fleet: Fleet) -> Foretelling:
    api.merge("Namespace", namespace, {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}})
    return Foretelling(api, namespace, fleet)


@pytest.mark.timeout(120 + 10 * CASES)
def test_explain_agrees_with_the_scheduler_on_one_node(foretelling: Foretelling) -> None:
    first = int(os.environ.get("NEURON_DRA_EXPLAIN_FIRST", "10000"))
    found = foretelling.play(range(first, first + CASES))
    log.warning("%d pods, %d refused, %d for their devices", found.pods, found.refused, found.by_devices)
    assert found.pods > 3 * CASES
    assert 0 < found.by_devices < found.refused < found.pods
    assert not found.differences, "\n".join(found.differences)


@pytest.mark.timeout(120 + 10 * CASES)
@pytest.mark.needs("shares", "counters")
def test_explain_names_the_node_that_the_scheduler_chooses(foretelling: Foretelling) -> None:
    found = foretelling.choose(range(20000, 20000 + CASES), nodes=5)
    log.warning("%d pods on any of 5 nodes, %d refused", found.pods, found.refused)
    assert 0 < found.refused < found.pods
    assert not found.differences, "\n".join(found.differences)
