"""Reviews without end: pods are created in dry run through the API server, and every answer is looked at."""

import dataclasses
import itertools
import time
from typing import Final

import httpx

from tests.cluster.api import Api, ApiError
from tests.cluster.manifests import is_converted, pod
from tests.support.faults import Attempt, Outcome
from tests.support.loops import Loop

CALM: Final = 0.1
"""Seconds between two reviews of a client where other tests share the processors."""
FULL: Final = 0.02
"""The same at full size."""


@dataclasses.dataclass(frozen=True, slots=True)
class Review:
    """One review.

    Attributes:
        began: monotonic seconds.
        seconds: until the API server answered.
        error: what went wrong; empty where the pod came back converted.
        lost: whether the pod was admitted unconverted.
    """

    began: float
    seconds: float
    error: str
    lost: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Figures:
    """What a load came to."""

    sent: int
    failed: int
    p50: float
    p99: float
    worst: float
    errors: tuple[str, ...]

    @classmethod
    def of(cls, reviews: list[Review]) -> "Figures":
        """Count them."""
        times = sorted(review.seconds for review in reviews)
        errors = tuple(dict.fromkeys(review.error for review in reviews if review.error))
        failed = sum(bool(review.error) for review in reviews)

        def at(share: float) -> float:
            return times[min(int(len(times) * share), len(times) - 1)] if times else 0.0

        return cls(len(reviews), failed, at(0.5), at(0.99), times[-1] if times else 0.0, errors[:5])

    def __str__(self) -> str:
        line = (
            f"{self.sent} reviews, {self.failed} failed, p50 {self.p50 * 1000:.0f} ms, p99 {self.p99 * 1000:.0f} ms, "
            f"worst {self.worst * 1000:.0f} ms"
        )
        return line + "".join(f"\n    {error}" for error in self.errors)


class Load(Loop):
    """Sends reviews from several threads for as long as the context is open."""

    def __init__(self, api: Api, namespace: str, pause: float, threads: int = 4) -> None:
        """`pause`: seconds between two reviews of a thread."""
        super().__init__(*[self._send] * threads, pause=pause)
        self._api = api
        self._namespace = namespace
        self._reviews: list[Review] = []
        self._numbers = itertools.count()

    @property
    def figures(self) -> Figures:
        """Of all reviews that were answered so far."""
        return Figures.of(list(self._reviews))

    def since(self, moment: float) -> Figures:
        """Of those that began after a moment of the monotonic clock."""
        return Figures.of([review for review in list(self._reviews) if review.began >= moment])

    def outcome(self, disturbance: str, over: float) -> Outcome:
        """What the disturbance did; `over` is its end, in monotonic seconds."""
        reviews = list(self._reviews)
        attempts = [
            Attempt(each.began, each.seconds, bool(each.error) and not each.lost, each.lost) for each in reviews
        ]
        return Outcome.of(disturbance, "reviews", attempts, over)

    def _send(self) -> None:
        # Images differ, so that nothing can be answered for being the same as before.
        number = next(self._numbers)
        manifest = pod(f"load-{number}")
        manifest["spec"]["containers"][0]["image"] = f"app:{number}"
        began = time.monotonic()
        self._reviews.append(Review(began, *self._try(manifest, began)))

    def _try(self, manifest: dict[str, object], began: float) -> tuple[float, str, bool]:
        try:
            stored = self._api.create(manifest, self._namespace, dry_run=True).body
        except ApiError as error:
            return time.monotonic() - began, str(error), False
        except httpx.HTTPError as error:
            return time.monotonic() - began, f"{type(error).__name__}: {error}", False
        seconds, lost = time.monotonic() - began, not is_converted(stored)
        return seconds, "came back unconverted" if lost else "", lost
