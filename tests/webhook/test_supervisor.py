"""Several processes behind one port: real ones, over real TLS."""

import contextlib
import json
import os
import platform
import signal
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.serving import PATIENCE, Client, Process, eventually, free_port, review
from tests.webhook.cli.test_main import KUBECONFIG
from webhook import settings, supervisor
from webhook.edge import server

IMPATIENT = """
import sys
from webhook import settings, supervisor
arguments = dict(pair.split("=", 1) for pair in sys.argv[1:])
patience = float(arguments.pop("hung_after"))
chosen = settings.load({**arguments, "standalone": True}, {})
sys.exit(supervisor.run(chosen, chosen.workers, hung_after=patience))
"""


class Replica(Process):
    """A replica with several workers, and what is known of it."""

    def __init__(self, directory: Path, *arguments: str, workers: int = 2, command: list[str] | None = None) -> None:
        self.workers = workers
        self.metrics_port = free_port()
        self.tls = directory / ".neuron-dra/tls/ca.crt"
        if command is None:
            flags = ["--standalone", "--workers", str(workers), "--port", "0", "--metrics-port", str(self.metrics_port)]
            command = ["-m", "webhook", "webhook", *flags, *arguments]
        super().__init__(command, cwd=directory)

    def events(self, name: str) -> list[dict[str, Any]]:
        """Every log line so far with that event."""
        lines = [json.loads(line) for line in self.seen.copy() if line.startswith("{")]
        return [line for line in lines if line["event"] == name]

    def started(self) -> "Replica":
        """Itself, once every worker serves and is ready."""
        eventually(lambda: len(self.events("serving")) >= self.workers, "all workers serve", 3 * PATIENCE)
        eventually(lambda: self.readiness()[0] == 200, "the replica is ready")
        return self

    @property
    def url(self) -> str:
        url: str = self.events("serving")[0]["url"][0]
        return url

    def client(self) -> Client:
        return Client(self.url, self.tls)

    def readiness(self) -> tuple[int, str]:
        """Status and text, on a connection of its own."""
        with self.client() as client:
            reply = client.get("/readyz?verbose")
        return reply.status, reply.body.decode()

    def pid(self, worker: int) -> int:
        """Process id of a worker, as first started."""
        pid: int = self.events("supervising")[0]["workers"][worker]
        return pid

    def samples(self, name: str) -> dict[str, float]:
        """Values of a series, summed by worker."""
        found: dict[str, float] = {}
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == name:
                    worker = sample.labels["worker"]
                    found[worker] = found.get(worker, 0.0) + sample.value
        return found


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[Replica]:
    with Replica(tmp_path) as started:
        yield started.started()


def gone(pid: int) -> bool:
    """Whether a process is no more, or waits for somebody to ask how it ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def threads(pid: int) -> int:
    """Threads of a process: whoever forks must have one."""
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


class Load:
    """Clients that send reviews as the API server does: on a connection until it is closed, then on another."""

    def __init__(self, replica: Replica, clients: int) -> None:
        self.answered: list[int] = []
        self.failed: list[float] = []
        self._replica = replica
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(clients)]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        eventually(lambda: len(self.answered) > 20, "reviews are answered")
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with self._replica.client() as client:
                    closing = False
                    while not closing and not self._stop.is_set():
                        reply = client.review(review())
                        self.answered.append(reply.status)
                        closing = reply.headers.get("connection") == "close"
            except ConnectionRefusedError:
                return
            except OSError:
                self.failed.append(time.monotonic())


# --- serving together -------------------------------------------------------------------------------------


def test_connections_reviews_and_metrics_are_shared(replica: Replica) -> None:
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(replica.client()) for _ in range(6)]
        for number in range(10):
            for client in clients:
                assert client.review(review(uid=f"u-{number}")).status == 200
        connections = replica.samples("neuron_dra_worker_connections")
    assert sum(connections.values()) == 6
    assert min(connections.values()) >= 2, "a busy machine may cost a turn"
    reviews = {worker: 10 * count for worker, count in connections.items()}
    assert replica.samples("neuron_dra_reviews_total") == reviews
    assert replica.samples("neuron_dra_review_duration_seconds_count") == reviews
    assert replica.samples("neuron_dra_worker_up") == {"0": 1.0, "1": 1.0}
    eventually(lambda: len(replica.events("decision")) == 60, "every decision is logged, each on a line of its own")


def test_readiness_answers_for_all_and_says_for_how_many(replica: Replica) -> None:
    status, text = replica.readiness()
    assert status == 200
    assert "[+]workers ok: 2 of 2, this is worker " in text


def test_workers_have_process_groups_of_their_own(replica: Replica) -> None:
    """Ctrl-C reaches the supervisor alone: a worker that heard of it twice would stop at once."""
    assert [os.getpgid(replica.pid(worker)) == replica.pid(worker) for worker in (0, 1)] == [True, True]


def test_one_worker_is_one_process_without_a_supervisor(tmp_path: Path) -> None:
    with Replica(tmp_path, workers=1) as single:
        eventually(lambda: single.events("serving"), "it serves")
        assert "workers" not in single.readiness()[1]
        assert not single.events("supervising")
        assert "worker" not in single.events("serving")[0]
        children = Path(f"/proc/{single.process.pid}/task/{single.process.pid}/children").read_text()
        assert children == ""


def test_policies_are_in_force_in_every_worker(tmp_path: Path) -> None:
    (tmp_path / "policies").mkdir()
    with Replica(tmp_path, "--policies", "policies") as replica:
        assert "[+]policies ok" in replica.started().readiness()[1]
        assert set(replica.samples("neuron_dra_policies")) == {"0", "1"}
        assert threads(replica.process.pid) == 1


# --- what cannot start ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("flag", "other"), [("--port", "--metrics-port"), ("--metrics-port", "--port")])
def test_a_port_in_use_is_said_once_and_is_exit_code_3(tmp_path: Path, flag: str, other: str) -> None:
    with server.listen("127.0.0.1", 0, "", "") as taken:
        flags = [flag, str(taken.getsockname()[1]), other, "0"]
        with Process(["-m", "webhook", "webhook", "--standalone", "--workers", "3", *flags], cwd=tmp_path) as process:
            assert process.wait() == 3
            assert process.stderr.count("it is in use.") == 1
            assert "Traceback" not in process.stderr


def test_what_no_worker_can_have_is_said_once_and_is_exit_code_3(tmp_path: Path, tls_directory: Path) -> None:
    (tmp_path / "kubeconfig").write_text(KUBECONFIG.format(port=free_port()))
    flags = ["--tls-dir", str(tls_directory), "--kubeconfig", "kubeconfig", "--port", "0", "--metrics-port", "0"]
    command = ["-m", "webhook", "webhook", "--workers", "3", "--sync-timeout", "1", *flags]
    with Process(command, cwd=tmp_path) as process:
        assert process.wait() == 3
        assert process.seen[-1].startswith("Error: ")
        assert process.stderr.count("Error: ") == 1
        assert "Traceback" not in process.stderr
        pids = next(json.loads(line)["workers"] for line in process.seen if '"supervising"' in line)
    assert all(gone(pid) for pid in pids)


@pytest.mark.parametrize("number", ["-1", "65", "two"])
def test_a_number_of_workers_that_cannot_be_is_said(tmp_path: Path, number: str) -> None:
    with Process(["-m", "webhook", "webhook", "--standalone", "--workers", number], cwd=tmp_path) as process:
        assert process.wait() == 3
        assert f"--workers is '{number}', and must be a whole number from 0 to 64." in process.stderr


def test_a_demonstration_is_one_process(tmp_path: Path) -> None:
    with Process(["-m", "webhook.demo", "--once", "--workers", "2"], cwd=tmp_path) as process:
        assert process.wait() == 3
        assert "The demonstration is one process. Drop --workers" in process.stderr


# --- workers that end, hang, or cannot come back ----------------------------------------------------------


def test_a_killed_worker_is_replaced_while_reviews_go_on(replica: Replica) -> None:
    with Load(replica, clients=4) as load:
        victim = replica.pid(1)
        os.kill(victim, signal.SIGKILL)
        eventually(lambda: replica.events("worker died"), "the death is noticed")
        eventually(lambda: len(replica.events("serving")) == 3, "another serves in its place")
        eventually(lambda: replica.readiness()[0] == 200, "all are ready again")
        answered = len(load.answered)
        eventually(lambda: len(load.answered) > answered + 20, "reviews go on")
    died = replica.events("worker died")[0]
    assert (died["worker"], died["pid"], died["end"]) == (1, victim, "killed by SIGKILL")
    assert died["restart_in"] == 0.0
    assert set(load.answered) == {200}
    assert len(load.failed) <= 2, "at most the reviews on the two connections of the dead worker"
    assert replica.samples("neuron_dra_worker_starts_total") == {"0": 1.0, "1": 2.0}
    assert gone(victim)


def test_a_worker_that_does_not_move_makes_the_replica_unready_and_is_left_out_of_metrics(replica: Replica) -> None:
    os.kill(replica.pid(1), signal.SIGSTOP)
    try:
        said = "[-]workers failed: worker 1 has not been heard of for "
        eventually(lambda: said in replica.readiness()[1], "the other says so")
        assert replica.readiness()[0] == 503
        assert replica.samples("neuron_dra_worker_up") == {"0": 1.0, "1": 0.0}
        assert set(replica.samples("process_resident_memory_bytes")) == {"0"}
    finally:
        os.kill(replica.pid(1), signal.SIGCONT)
    eventually(lambda: replica.readiness()[0] == 200, "it is well again")
    assert replica.samples("neuron_dra_worker_up") == {"0": 1.0, "1": 1.0}
    assert not replica.events("worker died")


def test_a_worker_that_hangs_is_killed_and_replaced(tmp_path: Path) -> None:
    metrics_port = free_port()
    command = ["-c", IMPATIENT, "workers=2", "hung_after=2", "port=0", f"metrics_port={metrics_port}"]
    with Replica(tmp_path, command=command) as replica:
        hung = replica.started().pid(0)
        os.kill(hung, signal.SIGSTOP)
        eventually(lambda: replica.events("worker hangs"), "it is noticed")
        eventually(lambda: len(replica.events("serving")) == 3, "another serves in its place")
        eventually(lambda: replica.readiness()[0] == 200, "all are ready again")
        facts = replica.events("worker hangs")[0]
        assert (facts["worker"], facts["pid"]) == (0, hung)
        assert facts["silent"] >= 2.0
        assert replica.events("worker died")[0]["end"] == "killed by SIGKILL"
        assert gone(hung)


def test_a_replica_that_was_stopped_as_a_whole_loses_no_worker(tmp_path: Path) -> None:
    """Frozen cgroups and paused machines: every heartbeat is old, and nobody hangs."""
    command = ["-c", IMPATIENT, "workers=2", "hung_after=4", "port=0", "metrics_port=0"]
    with Replica(tmp_path, command=command) as replica:
        pids = [replica.started().process.pid, replica.pid(0), replica.pid(1)]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(5)  # longer than silence may be
        # The supervisor first: it looks before they can beat.
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        eventually(lambda: replica.readiness()[0] == 200, "all are ready again")
        assert not replica.events("worker hangs")
        assert not replica.events("worker died")


def test_a_worker_that_somebody_else_stops_is_replaced(replica: Replica) -> None:
    os.kill(replica.pid(0), signal.SIGTERM)
    eventually(lambda: len(replica.events("serving")) == 3, "another serves in its place")
    assert replica.events("worker died")[0]["end"] == "exit code 0"
    eventually(lambda: replica.readiness()[0] == 200, "all are ready again")


def test_a_worker_that_cannot_come_back_is_tried_again_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "policies").mkdir()
    with Replica(tmp_path, "--policies", "policies") as replica:
        replica.started()
        (tmp_path / "policies").rename(tmp_path / "elsewhere")
        os.kill(replica.pid(1), signal.SIGKILL)
        eventually(lambda: len(replica.events("worker died")) == 3, "it is tried again")
        assert "[-]workers failed: worker 1 is being started again" in replica.readiness()[1]
        killed, *failed = replica.events("worker died")
        assert [death["restart_in"] for death in (killed, *failed)] == [0.0, 1.0, 2.0]
        assert {death["end"] for death in failed} == {"exit code 3"}
        assert all("policies" in death["reason"] for death in failed)
        (tmp_path / "elsewhere").rename(tmp_path / "policies")
        eventually(lambda: replica.readiness()[0] == 200, "it is back")


# --- the end ----------------------------------------------------------------------------------------------


def test_told_to_stop_all_workers_drain_and_no_review_fails(tmp_path: Path) -> None:
    with Replica(tmp_path, "--drain-delay", "1") as replica, Load(replica.started(), clients=4) as load:
        told = time.monotonic()
        replica.signal(signal.SIGTERM)
        eventually(lambda: len(replica.events("draining")) == 2, "both drain")
        with contextlib.suppress(OSError):
            assert replica.readiness()[0] == 503
        assert replica.wait() == 0
        assert time.monotonic() - told >= 1.0
        assert len(load.answered) > 40
        assert set(load.answered) == {200}
        # Whoever connects while the listener closes is turned away: that is what the delay is for.
        assert all(moment - told >= 1.0 for moment in load.failed)
        assert [line["worker"] for line in replica.events("stopped") if "worker" in line] != []
        assert not replica.events("stopping at once")


def test_nobody_waits_in_a_queue_that_nobody_serves(tmp_path: Path) -> None:
    """While workers answer what they have, the port is closed, in the supervisor as well."""
    with Replica(tmp_path, "--drain-delay", "0", "--drain-timeout", "30") as replica, contextlib.ExitStack() as stack:
        replica.started()
        host, port = replica.url.removeprefix("https://").split(":")
        for _ in range(2):
            # Half a review keeps a worker from ending.
            client = stack.enter_context(replica.client())
            client.connection.putrequest("POST", "/mutate")
            client.connection.putheader("Content-Type", "application/json")
            client.connection.putheader("Content-Length", "100")
            client.connection.endheaders(b"{")
        eventually(lambda: sum(replica.samples("neuron_dra_inflight_reviews").values()) == 2, "both are in flight")
        replica.signal(signal.SIGTERM)

        def refused() -> bool:
            try:
                socket.create_connection((host, int(port)), timeout=5).close()
            except ConnectionError:
                return True
            return False

        eventually(refused, "connections are refused")
        assert replica.process.poll() is None


def test_a_second_signal_ends_all_at_once(tmp_path: Path) -> None:
    with Replica(tmp_path, "--drain-delay", "60") as replica:
        replica.started()
        replica.signal(signal.SIGINT)
        eventually(lambda: len(replica.events("draining")) == 2, "both drain")
        started = time.monotonic()
        replica.signal(signal.SIGTERM)
        assert replica.wait() == 0
        assert time.monotonic() - started < 10
        assert len(replica.events("stopping at once")) == 2


def test_a_worker_that_does_not_drain_is_cut_off_and_said(tmp_path: Path) -> None:
    with Replica(tmp_path, "--drain-delay", "60") as replica:
        stopped = replica.started().pid(1)
        os.kill(stopped, signal.SIGSTOP)
        replica.signal(signal.SIGTERM)
        eventually(lambda: replica.events("draining"), "the other drains")
        replica.signal(signal.SIGTERM)
        assert replica.wait() == 1
        lost = replica.events("worker did not drain")
        assert [(line["worker"], line["pid"], line["end"]) for line in lost] == [(1, stopped, "killed by SIGKILL")]


def test_a_supervisor_that_is_killed_leaves_nothing_behind(replica: Replica) -> None:
    pids = [replica.pid(0), replica.pid(1)]
    os.kill(pids[0], signal.SIGSTOP)
    replica.signal(signal.SIGKILL)
    replica.process.wait()
    eventually(lambda: all(gone(pid) for pid in pids), "workers end with it, even one that does not move")


def test_told_to_stop_while_starting_it_stops(tmp_path: Path, tls_directory: Path) -> None:
    with server.listen("127.0.0.1", 0, "", "") as silent:
        (tmp_path / "kubeconfig").write_text(KUBECONFIG.format(port=silent.getsockname()[1]))
        flags = ["--tls-dir", str(tls_directory), "--kubeconfig", "kubeconfig", "--port", "0", "--metrics-port", "0"]
        with Process(["-m", "webhook", "webhook", "--workers", "2", *flags], cwd=tmp_path) as process:
            connections = [silent.accept()[0] for _ in range(2)]
            assert threads(process.process.pid) == 1
            process.signal(signal.SIGTERM)
            assert process.wait() == 0
            for connection in connections:
                connection.close()


UNSTEADY = """
import os, signal, sys, time
from webhook import supervisor
from webhook.workers.page import Page
from webhook.edge import logs
logs.configure("json", "info")
def work(index):
    {work}
sys.exit(supervisor.Supervisor(Page(2), work, lambda: None, patience=1, hung_after=30).run())
"""


@pytest.mark.parametrize(
    ("work", "code", "said"),
    [
        pytest.param("raise ZeroDivisionError('x')", 1, "ZeroDivisionError: x", id="fault"),
        pytest.param("os._exit(7)", 7, "exit code 7", id="other-code"),
    ],
)
def test_a_fault_at_the_first_start_ends_the_whole_with_its_code(
    tmp_path: Path, work: str, code: int, said: str
) -> None:
    script = UNSTEADY.format(work=work)
    with Process(["-c", script], cwd=tmp_path) as process:
        assert process.wait() == code
        assert said in process.stderr


def test_a_worker_leaves_no_trace_of_the_supervisor(tmp_path: Path) -> None:
    """What is above it on the stack must not run twice, and signals reach it."""
    work = "os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)"
    script = UNSTEADY.format(work=work).replace("hung_after=30).run())", "hung_after=30).run()); print('never')")
    with Process(["-c", script], cwd=tmp_path) as process:
        line = process.event("worker died")
        assert line["end"] == "killed by SIGTERM"
        process.signal(signal.SIGTERM)
        assert process.wait() == 0
        assert process.stdout() == ""


def test_elsewhere_than_on_linux_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    with pytest.raises(settings.StartupError, match=r"More than one worker needs Linux\. Set --workers to 1\."):
        supervisor.run(settings.load({"standalone": True}, {}), 2)
