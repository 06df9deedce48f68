"""A histogram for Prometheus that costs little to fill."""

import bisect


class Histogram:
    """Observations in buckets. Written by one thread; a copy of the counts is consistent in itself."""

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count a value in the first bucket that it is not above."""
        self.counts[bisect.bisect_left(self._bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative, as the text format wants them."""
        total = 0
        cumulative: list[tuple[str, float]] = []
        bounds = (*map(str, self._bounds), "+Inf")
        for bound, count in zip(bounds, tuple(self.counts), strict=True):
            total += count
            cumulative.append((bound, total))
        return cumulative
