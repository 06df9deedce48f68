"""How many workers `--workers 0` means."""

from pathlib import Path

import pytest

from webhook.workers.cores import MOST, choose, quotas, usable


@pytest.mark.parametrize(
    ("cores", "limits", "workers"),
    [
        pytest.param(1, (), 1, id="one-core"),
        pytest.param(3, (), 3, id="no-limit"),
        pytest.param(96, (), MOST, id="large-node"),
        pytest.param(8, (2.0,), 2, id="whole-limit"),
        pytest.param(8, (1.5,), 2, id="part-of-a-core"),
        pytest.param(8, (0.1,), 1, id="little"),
        pytest.param(8, (3.0, 2.0), 2, id="tightest-counts"),
        pytest.param(2, (4.0,), 2, id="affinity-below-limit"),
    ],
)
def test_workers_for_cores_and_limits(cores: int, limits: tuple[float, ...], workers: int) -> None:
    assert choose(cores, limits) == workers


@pytest.mark.parametrize(
    ("membership", "files", "limits"),
    [
        pytest.param("0::/\n", {"cpu.max": "150000 100000\n"}, [1.5], id="v2-in-a-container"),
        pytest.param("0::/\n", {"cpu.max": "max 100000\n"}, [], id="v2-without-limit"),
        pytest.param(
            "0::/a/b\n",
            {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "200000 100000\n"},
            [2.0],
            id="v2-limit-of-a-parent",
        ),
        pytest.param(
            "4:cpu,cpuacct:/pod\n1:name=systemd:/x\n",
            {"cpu/pod/cpu.cfs_quota_us": "50000\n", "cpu/pod/cpu.cfs_period_us": "100000\n"},
            [0.5],
            id="v1",
        ),
        pytest.param(
            "4:cpu:/\n",
            {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"},
            [],
            id="v1-without-limit",
        ),
        pytest.param("0::/\n", {"cpu.max": "1 0\n"}, [], id="no-period"),
        pytest.param("nonsense\n", {}, [], id="unreadable"),
    ],
)
def test_limits_are_read_from_the_cgroup(
    tmp_path: Path, membership: str, files: dict[str, str], limits: list[float]
) -> None:
    (tmp_path / "membership").write_text(membership)
    for name, text in files.items():
        (tmp_path / "fs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "fs" / name).write_text(text)
    assert list(quotas(tmp_path / "fs", tmp_path / "membership")) == limits


def test_this_machine_has_workers(tmp_path: Path) -> None:
    assert 1 <= usable() <= MOST
    assert 1 <= usable(tmp_path, tmp_path / "none") <= MOST
