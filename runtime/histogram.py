"""A histogram for Prometheus with fast observations."""

import bisect


class Histogram:
    """Observations in buckets. One thread may write; a copy of the counts is consistent."""

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count a value in the first bucket whose bound is not below it."""
        self.counts[bisect.bisect_left(self._bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative counts by upper bound, for the text format."""
        total = 0
        cumulative: list[tuple[str, float]] = []
        bounds = (*map(str, self._bounds), "+Inf")
        for bound, count in zip(bounds, tuple(self.counts), strict=True):
            total += count
            cumulative.append((bound, total))
        return cumulative
