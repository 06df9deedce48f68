"""Record a real API server's estimate of every device selector's cost in kubernetes_estimates.json.

The server only says whether an estimate is above its limit. `lists.range(n).size() >= 0 || (selector)` costs exactly
`n + 13` more than the selector, so that the largest `n` that the server takes tells the selector's own estimate. Run by
hand (`python -m kubecel_tests.record_estimates`); needs etcd and kube-apiserver in KUBEBUILDER_ASSETS.
"""

import json
import sys

import httpx

from kubecel_tests.record_answers import CLASSES, HERE, api_server, lines

LIMIT = 1_000_000
PADDING = 13
"""Cost of the padding without `n`: 11 of `lists.range`, 1 of `size` and 1 of `>=`."""


def refused(client: httpx.Client, expression: str) -> str | None:
    """The reason for which the server refuses a device selector; None if it accepts it."""
    device_class = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "asked"},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    }
    response = client.post(CLASSES, params={"dryRun": "All"}, json=device_class)
    return None if response.status_code == httpx.codes.CREATED else str(response.json()["message"])


def estimate(client: httpx.Client, selector: str) -> int | str | None:
    """The server's estimate, or its refusal if the estimate is above the limit; None for another refusal."""
    refusal = refused(client, selector)
    if refusal is not None:
        return refusal.partition("expression: ")[2] if "exceeds cost limit" in refusal else None

    def taken(padding: int) -> bool:
        return refused(client, f"lists.range({padding}).size() >= 0 || ({selector})") is None

    low, high = -1, LIMIT
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if taken(middle) else (low, middle)
    # Without room for any padding the estimate is only known to be within the last 13.
    return LIMIT - PADDING - low if low >= 0 else None


def main() -> None:
    with api_server() as client:
        version = client.get("/version").json()["gitVersion"]
        found = {each: estimate(client, each) for each in (*lines("selectors.txt"), *lines("costly_selectors.txt"))}
    recorded = {"kubernetes": version, "estimates": {each: cost for each, cost in found.items() if cost is not None}}
    text = json.dumps(recorded, indent=1, ensure_ascii=False)
    (HERE / "kubernetes_estimates.json").write_text(text + "\n", encoding="utf-8")
    sys.stdout.write(f"{len(recorded['estimates'])} estimates of {version}\n")


if __name__ == "__main__":
    main()
