"""Properties of every play: no pod is lost, no device is given twice, spare nodes end all waits."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from commands.rehearse.play import Player, RehearsalScene
from commands.rehearse.rehearsing import RehearsalChoice
from tests.support.rehearsing import Object, budget, gathered, node, pods, rehearsal

PARTS = st.lists(
    st.tuples(
        st.sampled_from([1, 4, 8, 16]),
        st.lists(st.integers(0, 3), min_size=1, max_size=4),
        st.sampled_from([None, 0, 1, "50%"]),
        st.sampled_from(["ReplicaSet", "ReplicaSet", "", "DaemonSet"]),
    ),
    min_size=1,
    max_size=5,
)


def objects(parts: list[tuple[int, list[int], int | str | None, str]]) -> list[Object]:
    """Four nodes in two groups, with pods as far as these have room."""
    free = Counter(dict.fromkeys(range(4), 16))
    made = [node(f"n{at}", "ab"[at % 2]) for at in range(4)]
    for number, (count, nodes, most, kind) in enumerate(parts):
        name, namespace = f"w{number}", f"team-{number % 3}"
        placed = []
        for at in nodes:
            if free[at] >= count:
                free[at] -= count
                placed.append(f"n{at}")
        made += pods(name, *placed, count=count, namespace=namespace, kind=kind)
        made += [] if most is None else [budget(name, namespace, maxUnavailable=most)]
    return made


def check(scene: RehearsalScene, player: Player) -> None:
    """Every pod is in one state, and nothing is held twice."""
    states = [*player.where, *player.reasons, *player.ended]
    assert sorted(states) == list(range(len(scene.pods)))
    for state in player.played.nodes.values():
        held = [result.device for result in state.held]
        assert len(held) == len(set(held))
        assert all(state.plugin_used[each] <= amount for each, amount in state.offers.items())
        assert all(state.used[each] <= amount for each, amount in state.limits.items())
        assert set(state.forms) == {number for number, name in player.where.items() if name == state.node.name}


@settings(max_examples=12)
@given(PARTS)
def test_no_pod_is_lost_and_no_device_given_twice(parts: list[tuple[int, list[int], int | str | None, str]]) -> None:
    scene = gathered(*objects(parts)).scene()
    player = Player(scene)
    check(scene, player)
    where = {number: pod.node for number, pod in enumerate(scene.pods) if pod.node}
    for group in scene.groups:
        step = player.move(group)
        check(scene, player)
        # The moves of the steps tell where every pod is.
        where |= {each.pod: each.to for each in step.moves}
        assert {number: name for number, name in where.items() if name and number not in player.ended} == player.where
    again = Player(scene)
    order = [group.name for group in scene.groups]
    assert again.play(order) == Player(scene).play(order)


@settings(max_examples=8)
@given(PARTS)
def test_with_enough_spare_nodes_nothing_waits(parts: list[tuple[int, list[int], int | str | None, str]]) -> None:
    # A DaemonSet's pods stay on their nodes, and a budget of 0 stops every drain.
    usual = [(count, nodes, most or None, "ReplicaSet") for count, nodes, most, _ in parts]
    made = gathered(*objects(usual))
    scene = made.with_spares(made.scene(), {"trn1.32xlarge": 8}, "spare")
    assert Player(scene).play([group.name for group in scene.groups]).calm


@settings(max_examples=6)
@given(PARTS)
def test_the_needed_spare_nodes_are_enough(parts: list[tuple[int, list[int], int | str | None, str]]) -> None:
    usual = [(count, nodes, most or None, "ReplicaSet") for count, nodes, most, _ in parts]
    found = rehearsal(*objects(usual))
    assert found.spares.needed is not None
    choice = RehearsalChoice(found.spares.needed, found.best.order)
    assert rehearsal(*objects(usual), choice=choice).well
