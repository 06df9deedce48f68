"""The metrics of all workers in one answer.

Every series gets a label `worker`. Sums would lie: a worker that is started again counts from 0, which takes part of a
sum away, and to `rate()` a counter that falls has begun anew and grown by what is left of it. A worker that does not
answer a scrape would do the same. With the label each series begins anew by itself, as those of replicas do, and
`sum without (worker) (rate(...))` is right at any time.

Workers give each other their families as they are, not as text: the text format forgets types.
"""

import contextlib
import logging
import selectors
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Self

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from webhook.workers.member import Member

log = logging.getLogger(__name__)

LABEL: Final = "worker"

PATIENCE: Final = 1.0
"""Seconds that all siblings together may take to answer; a scraper waits ten."""

_CHUNK: Final = 1 << 16


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """One number of a family."""

    name: str
    labels: dict[str, str]
    value: float


class Family(msgspec.Struct, frozen=True, array_like=True):
    """A family of series, as `prometheus_client` collects it."""

    name: str
    documentation: str
    type: str
    samples: list[Sample]


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(list[Family])


def families(metrics: Iterable[Metric]) -> list[Family]:
    """What one worker tells a sibling."""
    return [
        Family(
            metric.name,
            metric.documentation,
            metric.type,
            [Sample(sample.name, sample.labels, sample.value) for sample in metric.samples],
        )
        for metric in metrics
    ]


def merge(answers: Iterable[tuple[int, list[Family]]]) -> list[Metric]:
    """One set of families out of what workers told (number of the worker, its families), first seen first."""
    merged: dict[str, Metric] = {}
    for worker, answer in answers:
        for family in answer:
            metric = merged.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            for sample in family.samples:
                metric.add_sample(sample.name, {**sample.labels, LABEL: str(worker)}, sample.value)
    return list(merged.values())


def mailboxes(size: int) -> tuple[socket.socket, ...]:
    """A Unix socket for each worker, at addresses that the kernel chooses: no directory is needed."""
    made = []
    for _ in range(size):
        listener = socket.socket(socket.AF_UNIX)
        listener.bind("")
        listener.listen()
        made.append(listener)
    return tuple(made)


class AllWorkers(Collector):
    """Collects from this worker and its siblings, and says who answered."""

    def __init__(self, registry: CollectorRegistry, member: Member, boxes: Sequence[socket.socket]) -> None:
        """Collect `registry` here, and what siblings answer at their `boxes`."""
        self._registry = registry
        self._member = member
        self._addresses = [box.getsockname() for box in boxes]

    def collect(self) -> Iterator[Metric]:
        """All families of all workers that answer."""
        answers = ask(
            {
                index: self._addresses[index]
                for index, slot in enumerate(self._member.slots)
                if slot.pid and index != self._member.index
            }
        )
        answers[self._member.index] = families(self._registry.collect())
        up = GaugeMetricFamily("neuron_dra_worker_up", "1 where a worker answered this scrape.", labels=(LABEL,))
        starts = CounterMetricFamily("neuron_dra_worker_starts", "How often a worker was started.", labels=(LABEL,))
        connections = GaugeMetricFamily("neuron_dra_worker_connections", "Open connections.", labels=(LABEL,))
        for index, slot in enumerate(self._member.slots):
            up.add_metric((str(index),), int(index in answers))
            starts.add_metric((str(index),), slot.starts)
            connections.add_metric((str(index),), slot.connections)
        yield from (up, starts, connections)
        yield from merge(sorted(answers.items()))


def ask(addresses: dict[int, bytes], patience: float = PATIENCE) -> dict[int, list[Family]]:
    """What workers answer, of those that do within so many seconds. They work at the same time."""
    answers: dict[int, list[Family]] = {}
    connections: dict[int, socket.socket] = {}
    received = {index: bytearray() for index in addresses}
    deadline = time.monotonic() + patience
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
        for index, address in addresses.items():
            connection = connections[index] = stack.enter_context(socket.socket(socket.AF_UNIX))
            connection.setblocking(False)
            # A full queue is a sibling that hangs.
            with contextlib.suppress(OSError):
                connection.connect(address)
                selector.register(connection, selectors.EVENT_READ, index)
        while selector.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                index = int(key.data)
                try:
                    chunk = connections[index].recv(_CHUNK)
                except OSError:
                    selector.unregister(key.fileobj)
                    continue
                received[index] += chunk
                if not chunk:
                    selector.unregister(key.fileobj)
                    # Whoever died while it answered has said nothing, or half of it.
                    with contextlib.suppress(msgspec.DecodeError):
                        answers[index] = _decoder.decode(received[index])
    return answers


class Answering:
    """Answers siblings that ask for this worker's metrics, in a thread of its own, for the length of a context."""

    def __init__(self, registry: CollectorRegistry, box: socket.socket) -> None:
        """Answer with `registry` at `box`."""
        self._registry = registry
        self._box = box
        self._stop, self._stopped = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="metrics for siblings", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.close()
        self._thread.join()
        self._stopped.close()

    def _serve(self) -> None:
        self._box.setblocking(False)
        with selectors.DefaultSelector() as selector:
            selector.register(self._box, selectors.EVENT_READ)
            selector.register(self._stopped, selectors.EVENT_READ)
            while all(key.fileobj is not self._stopped for key, _ in selector.select()):
                try:
                    self._answer()
                except OSError as error:
                    log.debug("a sibling went away", extra={"error": str(error)})
                except Exception:
                    log.exception("metrics cannot be collected")

    def _answer(self) -> None:
        connection, _ = self._box.accept()
        with connection:
            connection.settimeout(PATIENCE)
            connection.sendall(_encoder.encode(families(self._registry.collect())))
