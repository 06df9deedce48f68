"""The catalogue as a table and as JSON: every figure with its source, and what is not known says so."""

import json

from commands.cli import types as table
from neuron.hardware.instances import Catalogue, Observation
from neuron.hardware.sources import FIGURES

CATALOGUE = Catalogue()


def test_each_figure_has_the_number_of_a_source_below() -> None:
    lines = table.as_wide_text(tuple(CATALOGUE)).splitlines()
    head, row = lines[0].split(), next(line for line in lines if line.startswith("trn3e.24xlarge "))
    assert head == ["TYPE", "DEVICES", "CORES/DEVICE", "LNC", "MEMORY/DEVICE", "TOPOLOGY", "GROUPS", "ULTRASERVER"]
    words = row.split()
    assert words[::2] == ["trn3e.24xlarge", "4", "8", "1/2", "144Gi", "switch", "unknown", "unknown"]
    listed = {line.partition(" ")[0]: line for line in lines if line.startswith("[")}
    assert set(words[1::2]) <= listed.keys()
    assert listed[words[3]].endswith("high: AWS Neuron kernel driver 2.31, platform map")
    assert " low: " in listed[words[-1]]


def test_a_count_that_is_not_known_is_null() -> None:
    unknown, known, ring = (CATALOGUE.get(name) for name in ("trn3n.48xlarge", "trn3e.24xlarge", "inf2.48xlarge"))
    assert unknown is not None
    assert known is not None
    assert ring is not None
    first, second, third = json.loads(json.dumps(table.as_objects((unknown, known, ring))))
    assert (first["devices"], first["deviceCounts"], first["offered"]) == (None, None, False)
    assert (second["devices"], second["deviceCounts"], second["offered"]) == (4, [1, 4], True)
    assert (second["groups"], second["ultraserver"]) == (None, None)
    assert third["deviceCounts"] == "any"
    assert set(first["sources"]) == set(FIGURES)
    assert first["sources"]["devices"] == {"source": "no source states it", "confidence": "low"}


def test_a_type_that_only_the_cluster_shows_has_figures_and_unknowns() -> None:
    seen = CATALOGUE.observed({"trn9.big": Observation(16, (4,))}).get("trn9.big")
    assert seen is not None
    row = table.as_wide_text((seen,)).splitlines()[1]
    assert row.split()[::2] == ["trn9.big", "16", "unknown", "unknown", "unknown", "switch", "4", "-"]


def test_the_table_fits_a_terminal_and_begins_with_what_can_be_rented() -> None:
    lines = table.as_text(tuple(CATALOGUE)).splitlines()
    assert max(map(len, lines)) <= 80
    others = next(at for at, line in enumerate(lines) if line.startswith("Names that AWS does not offer"))
    blocks = [[line.split()[0] for line in part if line] for part in (lines[1:others], lines[others + 1 : -4])]
    assert blocks[0] == [each.name for each in CATALOGUE if each.offered]
    assert blocks[1] == [each.name for each in CATALOGUE if not each.offered]


def test_a_figure_in_doubt_has_a_mark() -> None:
    lines = table.as_text(tuple(CATALOGUE)).splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in lines if line}
    assert rows["trn3p.48xlarge"] == ["16?", "8*", "1/2", "144Gi*", "torus?", "4,8,16", "unknown"]
    assert rows["trn2.48xlarge"] == ["16", "8", "1/2", "96Gi", "torus", "4,8,16", "-"]
    assert "* as for" in lines[-2]
    known = CATALOGUE.get("trn2.48xlarge")
    assert known is not None
    alone = table.as_text((known,))
    assert "*" not in alone
    assert "does not offer" not in alone


def test_a_table_without_types_has_its_head() -> None:
    assert table.as_text(()).startswith("TYPE  DEVICES")
