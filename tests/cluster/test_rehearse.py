"""`neuron-dra rehearse` against the migration as it then happens: drains, controllers and scheduler are real.

NEURON_DRA_REHEARSALS sets how many random clusters; the default keeps the file short enough for every run.
"""

import logging
import os
from typing import Final

import pytest

from tests.cluster.api import Api
from tests.cluster.controlplane import ControlPlane
from tests.cluster.nodes import Fleet
from tests.cluster.rehearsed import Rehearsed
from tests.cluster.webhooks import Webhook

CLUSTERS: Final = int(os.environ.get("NEURON_DRA_REHEARSALS", "2"))
FIRST: Final = int(os.environ.get("NEURON_DRA_REHEARSALS_FIRST", "1"))

log = logging.getLogger(__name__)


@pytest.fixture
def rehearsed(control_plane: ControlPlane, api: Api, webhook: Webhook, fleet: Fleet, namespace: str) -> Rehearsed:
    second = f"{namespace}-b"
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": second}})
    control_plane.wait_namespace_usable(second)
    return Rehearsed(control_plane, webhook, fleet, (namespace, second))


@pytest.mark.timeout(120 + 120 * CLUSTERS)
def test_a_migration_goes_as_it_was_rehearsed(rehearsed: Rehearsed) -> None:
    score = rehearsed.play(range(FIRST, FIRST + CLUSTERS))
    log.warning("%s", score)
    for each in score.misses:
        log.warning("%s", each)
    assert score.pods > 0
    # Of equal nodes the scheduler takes one at random, so that other devices may be free.
    assert score.right >= 0.9 * score.pods, "\n".join(score.misses)
