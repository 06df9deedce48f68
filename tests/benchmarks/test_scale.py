"""The table of sizes: its figures, the line through them, and the relay that counts bytes."""

import socket
import threading
from collections import Counter
from pathlib import Path

import click
import pytest

from benchmarks.scale import (
    BEGIN,
    END,
    Change,
    DriverStart,
    Pods,
    Point,
    Relay,
    Start,
    above_linear,
    costs,
    line,
    requests_of,
    table,
    write,
)


def point(nodes: int, cpu: float) -> Point:
    pods = Pods(count=1_000, rate=50, cpu=0.9, api_cpu=7, decision=2.1, requests=0.04, read=134, rss=90)
    return Point(nodes, 1_000, Start(1.5, cpu, 80, 0.7), pods, Change(1.4, 12_900), Change(0.2, 1_590))


def test_the_line_has_a_start_and_a_slope() -> None:
    assert line([(50, 1.05), (500, 9.0), (5_000, 6.0)]) == pytest.approx((1.0, 0.001))
    assert line([(50, 1.05)]) == (1.05, 0.0)


@pytest.mark.parametrize(
    ("values", "times"),
    [
        pytest.param((1.05, 1.5, 6.0), 1.0, id="linear"),
        pytest.param((1.05, 1.5, 60.0), 10.0, id="superlinear"),
        pytest.param((1.1, 1.0, 1.0), 0.9, id="falling-counts-as-flat"),
        pytest.param((1.05, 1.5), 1.0, id="two-sizes-say-nothing"),
    ],
)
def test_the_largest_size_is_compared_with_the_line_of_the_smaller_ones(
    values: tuple[float, ...], times: float
) -> None:
    assert above_linear(list(zip((50, 500, 5_000), values, strict=False))) == pytest.approx(times, abs=0.02)


def test_the_table_has_a_column_for_each_size_and_a_row_for_each_start_of_a_driver() -> None:
    points = [point(50, 1.05), point(500, 1.5), point(5_000, 6.0)]
    text = table(points, {"first start": DriverStart(Counter({"POST resourceslices": 1, "GET nodes": 2}), 0.5, 0.8)})
    assert "| nodes | 50 | 500 | 5,000 |" in text
    assert "| devices | 800 | 8,000 | 80,000 |" in text
    assert "| CPU until ready, s | 1.00 | 1.00 | 1.00 |" in text
    assert "| first start | 2 GET nodes, 1 POST resourceslices | 0.50 MiB | 0.80 s |" in text
    assert all(above_linear(values) <= 1.01 for values in costs(points).values())


def test_only_the_table_of_a_page_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write(page, "new")
    assert page.read_text() == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"
    page.write_text("nothing\n")
    with pytest.raises(click.ClickException, match="lacks the lines"):
        write(page, "new")


def test_requests_are_counted_by_verb_and_resource_without_watches() -> None:
    metrics = """\
apiserver_request_total{code="200",dry_run="",resource="nodes",verb="GET"} 2
apiserver_request_total{code="404",dry_run="",resource="nodes",verb="GET"} 1
apiserver_request_total{code="201",dry_run="All",resource="resourceslices",verb="POST"} 1
apiserver_request_total{code="0",dry_run="",resource="nodes",verb="WATCH"} 5
apiserver_request_total{code="200",dry_run="",resource="leases",verb="PUT"} 9
"""
    assert requests_of(metrics) == {"GET nodes": 3, "POST resourceslices (dry run)": 1}


def test_the_relay_passes_both_ways_and_counts_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(connection.recv(100).upper() * 3)

        threading.Thread(target=answer, daemon=True).start()
        relay = Relay(server.getsockname()[1])
        with socket.create_connection(("127.0.0.1", relay.port), timeout=60) as client:
            client.sendall(b"ping")
            read = b""
            while data := client.recv(100):
                read += data
        relay.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", relay.port), timeout=60)
    assert (read, relay.read) == (b"PING" * 3, 12)
