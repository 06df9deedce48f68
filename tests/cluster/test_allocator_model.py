"""The model of the allocator (`neuron/allocator/search.py`) against the real scheduler, on random mixtures of claims.

NEURON_DRA_ALLOCATOR_CASES sets how many; the default keeps the file short enough for every run.
"""

import logging
import os
from typing import Final

import pytest

from tests.cluster.allocating import Allocating
from tests.cluster.comparing import compare

CASES: Final = int(os.environ.get("NEURON_DRA_ALLOCATOR_CASES", "25"))

log = logging.getLogger(__name__)


@pytest.mark.timeout(120 + 10 * CASES)
@pytest.mark.needs("shares", "counters")
def test_the_model_allocates_what_the_scheduler_allocates(allocating: Allocating) -> None:
    found = compare(allocating, range(CASES))
    log.warning("%d cases, %d claims, %d refused by the scheduler", CASES, found.claims, found.refused)
    assert found.claims > 3 * CASES
    assert 0 < found.refused < found.claims
    assert not found.differences, "\n".join(found.differences)
