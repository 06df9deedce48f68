"""Containers of any kind, for property tests of conversion."""

import json
from typing import Any

from hypothesis import strategies as st

from tests.support.manifests import container

_QUANTITIES = st.sampled_from(["0", "1", "4", "8", "16", "7", "1e0", "4k", "-1", "0.5", "many"])
CONTAINERS = st.fixed_dictionaries(
    {
        "resource": st.sampled_from(["neuron", "neurondevice", "neuroncore", None]),
        "amount": _QUANTITIES,
        "sidecar": st.booleans(),
        "env": st.sampled_from([None, [], [{"name": "NEURON_RT_NUM_CORES", "value": "1"}], [{"name": "X"}]]),
        "claims": st.sampled_from([None, [], [{"name": "net"}]]),
        "unknown": st.dictionaries(st.text(max_size=4), st.integers(), max_size=2),
    }
)


def built(containers: list[dict[str, Any]], prefix: str) -> list[dict[str, Any]]:
    """Containers of a pod, named by a prefix and their number; those with prefix "i" may be sidecars."""
    made_of = []
    for index, want in enumerate(containers):
        asks = {want["resource"]: want["amount"]} if want["resource"] else {}
        made = container(f"{prefix}{index}", sidecar=want["sidecar"] and prefix == "i", **asks)
        made |= {"x-unknown": want["unknown"]}
        if want["env"] is not None:
            made["env"] = want["env"]
        if want["claims"] is not None:
            made.setdefault("resources", {})["claims"] = want["claims"]
        made_of.append(made)
    # A copy of its own for every container, as JSON would be.
    return json.loads(json.dumps(made_of))
