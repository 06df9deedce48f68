"""`python -m benchmarks.packing`: how many devices consecutive allocation loses to fragmentation, by simulation.

Claims for runs of devices arrive and leave on 30 nodes, as a loss system: a claim that fits on no node is refused and
counted. The reference is the rule of the Neuron scheduler extension, which starts a run at any free device. Its
share of served devices is 1.00 in the table; the other rows choose between windows, in the order that the row names.
A second table counts the pods for devices and cores that are refused (`benchmarks.arrivals`).
Seeds are fixed, so the table is the same on every machine.
"""

import heapq
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import click

from benchmarks import arrivals
from conversion.claims.layout import mask
from neuron.hardware import windows
from neuron.hardware.instances import Catalogue
from neuron.hardware.windows import Line, Placement

NODES: Final = 30
LOADS: Final = (0.6, 0.9, 1.4)
"""Devices requested on average, as a share of those that exist."""

_DEMANDS: Final[Mapping[str, tuple[Line, Mapping[int, float]]]] = {
    "inf2.48xlarge, ring of 12": (
        Line(12, wraps=True),
        {1: 30, 2: 20, 3: 7, 4: 15, 5: 4, 6: 10, 7: 2, 8: 5, 9: 2, 10: 2, 11: 1, 12: 2},
    ),
    "inf1.24xlarge, chain of 16": (
        Line(16, wraps=False),
        {1: 30, 2: 20, 3: 5, 4: 17, 5: 3, 6: 4, 7: 1, 8: 10, 9: 1, 10: 1, 11: 1, 12: 3, 13: 0.5, 14: 0.5, 15: 1, 16: 3},
    ),
    "inf2.24xlarge, chain of 6": (Line(6, wraps=False), {1: 35, 2: 25, 3: 15, 4: 10, 5: 5, 6: 10}),
    "inf1.6xlarge, chain of 4": (Line(4, wraps=False), {1: 40, 2: 30, 3: 15, 4: 15}),
}

Plan: TypeAlias = Sequence[int]
"""Windows as bit masks of device ids, in the order in which the allocator tries them."""

Order: TypeAlias = Callable[[Line, int], Plan]


def _any_start(line: Line, size: int) -> Plan:
    return [mask(line.window(size, start)) for start in line.starts(size)]


def _tried(line: Line, size: int, placements: Sequence[Placement]) -> Plan:
    """The windows of alternatives: the allocator takes devices in order, so the lowest window of an attribute first."""
    return [each for placement in placements for each in sorted(map(mask, windows.allowed(line, size, placement)))]


def _published(line: Line, size: int) -> Plan:
    return _tried(line, size, windows.placements(line, size))


def _reversed(line: Line, size: int) -> Plan:
    return _tried(line, size, windows.placements(line, size)[::-1])


def _ids_before_attributes(line: Line, size: int) -> Plan:
    return _tried(line, size, sorted(windows.placements(line, size), key=lambda each: not each.ids))


def _ids_only(line: Line, size: int) -> Plan:
    return _tried(line, size, windows.placements(line, size, published=False))


def _first_shift(line: Line, size: int) -> Plan:
    return sorted(map(mask, line.windows_at(size, 0)))


ORDERS: Final[Mapping[str, Order]] = {
    "any start (the extension's rule)": _any_start,
    "attributes, then device ids (what claims list)": _published,
    "the same, last alternative first": _reversed,
    "device ids, then attributes": _ids_before_attributes,
    "device ids only (no attribute published)": _ids_only,
    "shift 0 only": _first_shift,
}


def served(line: Line, demand: Mapping[int, float], order: Order, load: float, seed: int) -> float:
    """Share of the requested devices that were served, in one run of 6,000 arrivals."""
    plans = {size: order(line, size) for size in demand if 1 < size < line.devices}
    plans |= {1: [1 << device for device in range(line.devices)], line.devices: [(1 << line.devices) - 1]}
    chance = random.Random(seed)  # noqa: S311 - a simulation
    free = [(1 << line.devices) - 1] * NODES
    sizes, weights = list(demand), list(demand.values())
    mean = sum(size * weight for size, weight in demand.items()) / sum(weights)
    rate = load * NODES * line.devices / mean
    leaving: list[tuple[float, int, int]] = []
    now, requested, given = 0.0, 0, 0
    for _ in range(6000):
        now += chance.expovariate(rate)
        while leaving and leaving[0][0] <= now:
            _, node, window = heapq.heappop(leaving)
            free[node] |= window
        size = chance.choices(sizes, weights)[0]
        requested += size
        end = now + chance.expovariate(1.0)
        # The scheduler does not look at fragmentation: every node on which the claim fits is as good.
        for node in chance.sample(range(NODES), NODES):
            found = next((window for window in plans[size] if free[node] & window == window), None)
            if found is not None:
                free[node] ^= found
                heapq.heappush(leaving, (end, node, found))
                given += size
                break
    return given / requested


def table(seeds: int) -> dict[str, dict[str, list[float]]]:
    """By line and order: the share of devices served at each load, relative to any start."""
    found: dict[str, dict[str, list[float]]] = {}
    for name, (line, demand) in _DEMANDS.items():
        shares = {
            order: [statistics.fmean(served(line, demand, plan, load, seed) for seed in range(seeds)) for load in LOADS]
            for order, plan in ORDERS.items()
        }
        reference = next(iter(shares.values()))
        found[name] = {
            order: [share / best for share, best in zip(row, reference, strict=True)] for order, row in shares.items()
        }
    return found


def plot(figures: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """The table as an SVG: one group of bars for each line, the worst load of each order."""
    colours = ("#4b5563", "#2563eb", "#60a5fa", "#0d9488", "#d97706", "#dc2626")
    left, top, height, bar, floor = 50, 30, 200, 16, 0.9
    width = left + len(figures) * (len(ORDERS) * bar + 30) + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top + height + 150}" font-size="11">',
        f'<rect width="{width}" height="{top + height + 150}" fill="#ffffff"/>',
        f'<text x="{left}" y="18" font-size="13">Devices served, relative to any start (worst load)</text>',
    ]
    for share in (0.90, 0.92, 0.94, 0.96, 0.98, 1.0):
        y = top + height * (1 - (share - floor) / (1.01 - floor))
        parts.append(f'<line x1="{left}" x2="{width - 20}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e5e7eb"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{share:.2f}</text>')
    for group, (name, rows) in enumerate(figures.items()):
        x = left + 10 + group * (len(ORDERS) * bar + 30)
        for place, row in enumerate(rows.values()):
            size = height * max(0.0, min(row) - floor) / (1.01 - floor)
            parts.append(
                f'<rect x="{x + place * bar}" y="{top + height - size:.1f}" width="{bar - 3}" height="{size:.1f}"'
                f' fill="{colours[place]}"/>'
            )
        parts.append(f'<text x="{x}" y="{top + height + 16}">{name.partition(",")[0]}</text>')
    for place, (order, colour) in enumerate(zip(ORDERS, colours, strict=True)):
        y = top + height + 36 + place * 17
        parts.append(f'<rect x="{left}" y="{y - 9}" width="11" height="11" fill="{colour}"/>')
        parts.append(f'<text x="{left + 18}" y="{y}">{order}</text>')
    return "\n".join([*parts, "</svg>", ""])


def refusals(seeds: int) -> dict[tuple[str, str], dict[str, float]]:
    """By instance type and mix of pods: the share of pods that are refused, by who places them."""
    catalogue = Catalogue()
    entries = [entry for name in arrivals.TYPES if (entry := catalogue.get(name)) is not None]
    return {
        (entry.name, mix): {
            who: statistics.fmean(arrivals.refused(entry, mix, placer(), arrivals.LOAD, seed) for seed in range(seeds))
            for who, placer in arrivals.placers(entry).items()
        }
        for entry in entries
        for mix in arrivals.MIXES
    }


@click.command()
@click.option("--seeds", default=4, show_default=True, help="Runs for each figure.")
@click.option("--svg", type=click.Path(dir_okay=False, path_type=Path), help="Also write the plot to this file.")
def main(seeds: int, svg: Path | None) -> None:
    """Simulate consecutive allocation and print the devices served, relative to any start."""
    figures = table(seeds)
    click.echo(f"{'devices served, relative to any start; load':52}" + "".join(f"{load:>8}" for load in LOADS))
    for name, rows in figures.items():
        click.echo(name)
        for order, row in rows.items():
            click.echo(f"  {order:50}" + "".join(f"{share:8.3f}" for share in row))
    click.echo("\npods refused, percent")
    for (name, mix), shares in refusals(seeds).items():
        click.echo(f"{name:15} {mix:8}" + "".join(f"  {who} {100 * share:.1f}" for who, share in shares.items()))
    if svg:
        svg.write_text(plot(figures))


if __name__ == "__main__":
    main()
