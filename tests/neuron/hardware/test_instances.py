import dataclasses

import pytest

from neuron.hardware import sources
from neuron.hardware.instances import DEFAULT_FAMILIES, Catalogue, InstanceType, Observation, Topology
from neuron.hardware.windows import Line

CATALOGUE = Catalogue()


def entry(name: str) -> InstanceType:
    found = CATALOGUE.get(name)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "devices", "cores_lnc1", "cores_default", "memory", "topology", "counts"),
    [
        ("inf1.xlarge", 1, 4, 4, 8, "single", (1,)),
        ("inf1.2xlarge", 1, 4, 4, 8, "single", (1,)),
        ("inf1.6xlarge", 4, 4, 4, 8, "chain", (1, 4)),
        ("inf1.24xlarge", 16, 4, 4, 8, "chain", (1, 16)),
        ("inf2.xlarge", 1, 2, 2, 32, "single", (1,)),
        ("inf2.8xlarge", 1, 2, 2, 32, "single", (1,)),
        ("inf2.24xlarge", 6, 2, 2, 32, "chain", (1, 6)),
        ("inf2.48xlarge", 12, 2, 2, 32, "ring", (1, 12)),
        ("trn1.2xlarge", 1, 2, 2, 32, "single", (1,)),
        ("trn1.32xlarge", 16, 2, 2, 32, "torus", (1, 4, 8, 16)),
        ("trn1n.32xlarge", 16, 2, 2, 32, "torus", (1, 4, 8, 16)),
        ("trn2.3xlarge", 1, 8, 4, 96, "single", (1,)),
        ("trn2.48xlarge", 16, 8, 4, 96, "torus", (1, 4, 8, 16)),
        ("trn2u.48xlarge", 16, 8, 4, 96, "torus", (1, 4, 8, 16)),
        ("trn3.48xlarge", 16, 8, 4, 144, "switch", (1, 4, 8, 16)),
        ("trn3e.24xlarge", 4, 8, 4, 144, "switch", (1, 4)),
        ("trn3n.48xlarge", None, 8, 4, 144, "switch", (1,)),
        ("trn3sn.48xlarge", 16, 8, 4, 144, "switch", (1, 16)),
        ("trn3sn.3xlarge", 1, 8, 4, 144, "single", (1,)),
        ("trn3p.48xlarge", 16, 8, 4, 144, "torus", (1, 4, 8, 16)),
        ("trn2e.48xlarge", 16, 8, 4, 96, "torus", (1, 4, 8, 16)),
    ],
)
def test_the_catalogue_states_what_aws_documents(
    name: str,
    devices: int | None,
    cores_lnc1: int,
    cores_default: int,
    memory: int,
    topology: str,
    counts: tuple[int, ...],
) -> None:
    known = entry(name)
    assert (known.devices, known.memory_gib, known.topology, known.counts) == (devices, memory, topology, counts)
    assert (known.cores(1), known.cores(None)) == (cores_lnc1, cores_default)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("inf2.48xlarge", Line(12, wraps=True)),
        ("inf2.24xlarge", Line(6, wraps=False)),
        ("inf1.24xlarge", Line(16, wraps=False)),
        ("inf1.6xlarge", Line(4, wraps=False)),
        ("inf2.xlarge", None),
        ("trn1.32xlarge", None),
    ],
)
def test_rings_and_chains_are_lines_of_devices(name: str, line: Line | None) -> None:
    assert (entry(name).line, entry(name).consecutive) == (line, line is not None)


def test_a_ring_of_unknown_length_or_of_one_device_has_no_line() -> None:
    for devices in (None, 1):
        ring = InstanceType("odd.large", "odd", devices, 2, (1,), 1, None, Topology.RING)
        assert (ring.line, ring.consecutive) == (None, True)


def test_only_trn2_and_trn3_have_a_choice_of_logical_neuron_core() -> None:
    choosing = {known.family for known in CATALOGUE if known.configures_logical_neuron_core}
    assert choosing == {"trn2", "trn2u", "trn3"}


def test_the_default_families_are_in_catalogue_order() -> None:
    assert CATALOGUE.families()[: len(DEFAULT_FAMILIES)] == DEFAULT_FAMILIES


def test_a_family_starts_with_its_largest_known_type() -> None:
    for family in ("trn1", "trn2", "inf1", "inf2"):
        sizes = [known.devices or 0 for known in CATALOGUE if known.family == family and known.offered]
        assert sizes == sorted(sizes, reverse=True)


def test_observation_sets_fields_that_the_catalogue_does_not_know() -> None:
    shown = {
        "trn3en.24xlarge": Observation(4, (4,)),
        "trn3.48xlarge": Observation(16, ()),
        "trn3sn.48xlarge": Observation(16, (4,)),
        "trn3e.24xlarge": Observation(4, ()),
    }
    found = {known.name: known for known in CATALOGUE.observed(shown) if known.name in shown}
    assert {name: (known.devices, known.counts) for name, known in found.items()} == {
        "trn3en.24xlarge": (4, (1, 4)),
        "trn3.48xlarge": (16, (1, 4, 8, 16)),
        "trn3sn.48xlarge": (16, (1, 4, 16)),
        "trn3e.24xlarge": (4, (1, 4)),
    }
    assert all(known.groups_known for known in found.values())
    by_slices = {
        name: {figure for figure, each in known.sources.items() if each is sources.RESOURCE_SLICES}
        for name, known in found.items()
    }
    assert by_slices == {
        "trn3en.24xlarge": {"devices", "groups"},
        "trn3.48xlarge": set(),
        "trn3sn.48xlarge": {"groups"},
        "trn3e.24xlarge": {"groups"},
    }


def test_every_figure_of_every_type_has_a_source() -> None:
    assert {known.name: sorted(known.sources) for known in CATALOGUE} == dict.fromkeys(
        CATALOGUE.names(), sorted(sources.FIGURES)
    )


def test_an_unknown_figure_has_no_source_that_is_sure() -> None:
    unknown = {
        "devices": [known for known in CATALOGUE if known.devices is None],
        "groups": [known for known in CATALOGUE if not known.groups_known],
        "ultraserver": [known for known in CATALOGUE if known.ultraserver_nodes is None],
    }
    assert all(unknown.values())
    for figure, types in unknown.items():
        assert {known.sources[figure].confidence for known in types} == {sources.Confidence.LOW}, figure


@pytest.mark.parametrize(
    ("word", "kinds"),
    [
        *(
            ("trn2.49xlarge", {"trn"}),
            ("tnr2.48xlarge", {"trn"}),
            ("ml.trn2.49xlarge", {"trn"}),
            ("trainium2", {"trn"}),
        ),
        *(("inferentia2.xlarge", {"inf"}), ("p5.48xlarge", set()), ("m5.24xlarge", set()), ("i4i.xlarge", set())),
        *(("48xlarge", set()), ("", set()), ("x" * 100_000, set())),
    ],
)
def test_only_names_with_letters_like_those_of_a_word_are_suggested(word: str, kinds: set[str]) -> None:
    assert {name[:3] for name in CATALOGUE.suggestions(word)} == kinds


def test_only_types_that_aws_offers_are_suggested() -> None:
    trn3 = [name for name in CATALOGUE.suggestions("trn3") if name.startswith("trn3")]
    assert trn3 == ["trn3.48xlarge", "trn3e.24xlarge"]
    assert "trn2e.48xlarge" not in CATALOGUE.suggestions("trn3")
    seen = CATALOGUE.observed({"trn3sn.48xlarge": Observation(16)})
    assert "trn3sn.48xlarge" in seen.suggestions("trn3")


def test_observation_does_not_change_documented_fields() -> None:
    seen = CATALOGUE.observed({"trn1.32xlarge": Observation(15, ())})
    assert seen.get("trn1.32xlarge") == entry("trn1.32xlarge")


def test_observation_sets_whether_cores_are_shared_and_windows_published() -> None:
    assert all(known.windows and not known.shares_cores for known in CATALOGUE)
    seen = CATALOGUE.observed({"inf2.48xlarge": Observation(12, shares_cores=True, windows=False)}).get("inf2.48xlarge")
    assert seen == dataclasses.replace(entry("inf2.48xlarge"), shares_cores=True, windows=False)


@pytest.mark.parametrize(
    ("seen", "offered"),
    [
        pytest.param(Observation(0, labels=("trn2u.48xlarge",)), (True, True), id="only Nodes"),
        pytest.param(Observation(16), (True, False), id="devices"),
        pytest.param(Observation(0, single_devices=False, whole_node=True), (False, True), id="whole nodes"),
        pytest.param(Observation(16, whole_node=True), (True, True), id="both"),
    ],
)
def test_the_published_kind_of_ultraserver_nodes_is_known_from_slices_only(
    seen: Observation, offered: tuple[bool, bool]
) -> None:
    found = CATALOGUE.observed({"trn2u.48xlarge": seen}).get("trn2u.48xlarge")
    assert found is not None
    assert (found.single_devices, found.whole_node) == offered


def test_shared_counters_are_known_from_the_slices_of_the_type_only() -> None:
    known = CATALOGUE.observed({"trn2u.48xlarge": Observation(16, counters=True), "trn4.large": Observation(4)})
    assert [each.name for each in known if each.counters] == ["trn2u.48xlarge"]
    known = CATALOGUE.observed({"trn4u.large": Observation(16, (4, 8), counters=True)})
    assert [each.name for each in known if each.counters] == ["trn4u.large"]


def test_unobserved_types_get_the_traits_of_observed_types_of_their_kind() -> None:
    seen = CATALOGUE.observed({"inf1.6xlarge": Observation(4, shares_cores=True), "trn1.32xlarge": Observation(16)})
    assert {known.name for known in seen if known.shares_cores} == {
        known.name for known in CATALOGUE if known.consecutive or known.devices == 1
    }
    mixed = {"inf1.6xlarge": Observation(4, shares_cores=True), "inf2.xlarge": Observation(1, windows=False)}
    known = {known.name: known for known in CATALOGUE.observed(mixed)}
    assert [known[name].shares_cores for name in ("inf1.6xlarge", "inf2.xlarge", "inf1.24xlarge")] == [
        True, False, False,
    ]  # fmt: skip
    assert [known[name].windows for name in ("inf1.6xlarge", "inf1.24xlarge", "trn1.32xlarge")] == [True, False, True]


def test_an_unlisted_type_has_its_observed_fields() -> None:
    new = CATALOGUE.observed({"trn4.96xlarge": Observation(32, (4, 8))}).get("trn4.96xlarge")
    assert new is not None
    assert (new.family, new.devices, new.counts, new.cores(None)) == ("trn4", 32, (1, 4, 8, 32), None)
    assert "trn4.96xlarge" not in CATALOGUE


def test_extending_replaces_in_place_and_appends_the_rest() -> None:
    changed = InstanceType("trn1.32xlarge", "trn1", 8, 2, (1,), 1, 32, Topology.TORUS)
    added = InstanceType("inf9.large", "inf9", 1, 2, (1,), 1, 32, Topology.SINGLE)
    names = CATALOGUE.extended([changed, added]).names()
    assert names == (*CATALOGUE.names(), "inf9.large")
    assert CATALOGUE.extended([changed]).get("trn1.32xlarge") == changed
