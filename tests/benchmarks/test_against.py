"""Two builds side by side: the commit, the commands, the figures and the verdict."""

import subprocess
from pathlib import Path

import click
import pytest

from benchmarks import against, load, reviews, servers
from benchmarks.against import Build, Row


def git(root: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=x", "-c", "user.email=x@example.com", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *identity, *arguments], cwd=root, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    (root / "webhook").mkdir(parents=True)
    git(root, "init", "--quiet")
    (root / "webhook" / "__main__.py").write_text("first")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "--message", "first")
    (root / "webhook" / "__main__.py").rename(root / "webhook" / "other.py")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "--message", "second")
    return root


def test_the_files_of_a_commit_are_unpacked(repository: Path, tmp_path: Path) -> None:
    name = against.unpack("HEAD~1", tmp_path / "first", repository)
    assert (tmp_path / "first" / "webhook" / "__main__.py").read_text() == "first"
    assert against.unpack(name, tmp_path / "again", repository) == name
    against.unpack("HEAD", tmp_path / "second", repository)
    assert not (tmp_path / "second" / "webhook" / "__main__.py").exists()


def test_an_unknown_commit_is_an_error(repository: Path, tmp_path: Path) -> None:
    with pytest.raises(click.ClickException, match="'nothing' is no commit of this repository"):
        against.unpack("nothing", tmp_path / "x", repository)


def test_the_module_of_the_commands_is_found_in_both_layouts(repository: Path, tmp_path: Path) -> None:
    against.unpack("HEAD~1", tmp_path / "first", repository)
    against.unpack("HEAD", tmp_path / "second", repository)
    assert Build("now", tmp_path / "first").module == "webhook"
    assert Build("base", tmp_path / "second").module == "commands"
    assert servers.webhook(1, 2, tmp_path, "commands")[1:4] == ["-m", "commands", "webhook"]


def test_builds_take_turns_and_the_first_one_alternates() -> None:
    calls: list[str] = []

    def measure(name: str, figure: float) -> float:
        calls.append(name)
        return figure

    found = against.in_turns([lambda: measure("now", 1.0), lambda: measure("base", 2.0)], 3)
    assert calls == ["now", "base", "base", "now", "now", "base"]
    assert found == [(1.0, 2.0)] * 3


def row(title: str, *pairs: tuple[float, float]) -> Row:
    made = Row(title)
    for pair in pairs:
        made.add(*pair)
    return made


def test_a_ratio_above_one_is_better_and_the_median_decides() -> None:
    faster = row("faster", (50, 100), (100, 100), (50, 100))
    slower = row("slower", (100, 90), (100, 90), (50, 100))
    assert faster.ratios == [2.0, 1.0, 2.0]
    assert not faster.slower(0.95)
    assert slower.slower(0.95)
    assert against.verdict([faster, slower], 0.95) == "below 0.95 x base: slower: 0.90 (0.90-1.45)"
    assert against.verdict([faster, slower], 0.85) == ""
    assert "2.00 (1.50-2.00)" in str(faster)


def test_rows_of_the_driver_are_read_from_its_benchmark() -> None:
    output = "prepare          p50   2.46 ms  p99   3.91 ms\nunprepare share  p50   0.91 ms  p99   1.34 ms\n"
    assert against.prepared(output) == {"prepare (driver)": 2.46, "unprepare share (driver)": 0.91}


def test_every_row_of_the_benchmark_has_its_bodies(tmp_path: Path) -> None:
    rows = against.loads(tmp_path)
    titles = [each.title for each in rows]
    assert len(set(titles)) == len(titles)
    for words in ("pass-through", "conversion", "validation", "first of its kind", "policies", "1 MiB", "handshake"):
        assert any(words in title for title in titles), words
    assert all(each.bodies.read_text().endswith("\n") for each in rows)
    assert max(each.bodies.stat().st_size for each in rows if "MiB" in each.title) > 2**20


def test_both_builds_are_measured_on_their_own_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short run with real servers; only the load generator is replaced."""
    urls: list[str] = []
    processes: set[int] = set()

    def run(target: load.Target, connections: int, seconds: int) -> load.Measured:
        urls.append(target.url.rpartition(":")[2])
        processes.add(target.process)
        assert (connections, seconds) == (1, 1)
        assert Path(f"/proc/{target.process}/stat").exists()
        return load.Measured(rps=100.0, p50=0, p95=0, p99=0, cpu=1e-4 * len(urls), answered=1)

    monkeypatch.setattr(load, "run", run)
    monkeypatch.setattr(against, "_SETTLED", 0)
    builds = Build("now", against._ROOT), Build("base", against._ROOT)
    bodies = tmp_path / "bodies"
    reviews.write(bodies, reviews.pod(None))
    shown: list[Row] = []
    start = against.start_row(builds, tmp_path, 1)
    against.load_rows(builds, tmp_path, [against.Load("x", "/mutate", bodies, 1)], 2, 1, shown.append)
    assert len(processes) == 6  # New servers in each round.
    assert sorted(url.partition("/")[2] for url in urls) == ["bare", "bare", "mutate", "mutate", "mutate", "mutate"]
    assert [each.title for each in shown] == ["x", "RSS ready", "RSS 10 s after load"]
    assert shown[0].ratios == pytest.approx([2.0, 0.8])  # The second round begins with the base.
    assert all(figure > 0 for each in (start, *shown) for pair in each.figures for figure in pair)
