"""Clusters to draw."""

from tests.support.emulated import SICK, EmulatedCluster

ULTRASERVER = "neuron.amazonaws.com/ultraserver-"
HOSTILE = "</script><img src=x onerror=alert(1)>\u202e\x1b[31m"


def mixed() -> EmulatedCluster:
    """One node of each kind, and two of an UltraServer; claims in all forms."""
    cluster = EmulatedCluster()
    cluster.node("torus")
    cluster.claim("train", "torus", range(4))
    cluster.claim("infer", "torus", [9], namespace="team-b")
    cluster.claim("monitor", "torus", range(16), admin=True)
    cluster.node("ring", "inf2.48xlarge", taints={5: SICK})
    cluster.claim("window", "ring", [0, 1, 2], cores=2)
    cluster.claim("share", "ring", [3], cores=1)
    cluster.claim("other-share", "ring", [4], cores=1)
    cluster.claim("third-share", "ring", [4], cores=1)
    cluster.claim("on-sick", "ring", [5], cores=2, pods=())
    cluster.node("chain", "inf1.24xlarge", unschedulable=True)
    cluster.node("plugin", driver=False, allocatable={"aws.amazon.com/neuron": "16"})
    cluster.legacy_pod("old", "plugin", "4")
    for position in (0, 1):
        labels = {f"{ULTRASERVER}server-id-4": "bog7", f"{ULTRASERVER}node-id-4": str(position)}
        cluster.node(f"us-{position}", "trn2u.48xlarge", labels=labels)
    cluster.claim("whole", "us-1", [-1])
    cluster.claim("lost", "gone", [3])
    return cluster


def many(count: int) -> EmulatedCluster:
    """Nodes n0000, n0001, …: of four, one is free, and the others have one to three claims for 4 devices each."""
    cluster = EmulatedCluster()
    for number in range(count):
        name = f"n{number:04}"
        cluster.node(name, taints={15: SICK} if number % 50 == 7 else None)
        for start in range(number % 4):
            cluster.claim(f"claim-{number}-{start}", name, range(4 * start, 4 * start + 4))
    return cluster
