"""The checks run beside the driver: log, metrics, Event and annotation follow what they find."""

import json
import logging
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from kubeletplugin import cli
from kubeletplugin.checks.node_checks import NodeChecks, NodeReader, event_text, note
from kubeletplugin.checks.readings import NodeInfo
from kubeletplugin.checks.table import Grade, NodeFinding
from kubeletplugin.discover.health import HealthMonitor
from kubeletplugin.metrics import PluginMetrics
from kubeletplugin.node_events import node_checks
from kubeletplugin.ports import WAITS
from kubeletplugin.publish.publisher import SliceNote
from kubeletplugin.settings import DriverSettings
from neuron.hardware.instances import Catalogue
from tests.kubeletplugin.checks.test_containers import Host, host
from tests.kubeletplugin.fakes import NODE, FakeClock, Node
from tests.support import forked


class NodeWorld:
    def __init__(self, tmp_path: Path) -> None:
        self.node, self.clock, self.metrics = Node(tmp_path / "node"), FakeClock(), PluginMetrics()
        (tmp_path / "host").mkdir()
        self.host: Host = host(tmp_path / "host")
        self.monitor = HealthMonitor(self.node.discover, Catalogue, self.clock, 10.0)
        self.note = SliceNote()
        self.count = 0
        settings = DriverSettings(
            node_name=NODE,
            sysfs_root=self.node.sysfs,
            dev_root=self.node.dev,
            logical_nc_file=tmp_path / "lnc",
            cdi_dir=tmp_path,
            state_dir=tmp_path,
        )
        info = NodeInfo("containerd://2.1.4")
        reader = NodeReader(settings, self.monitor, lambda: info, self.host.looks(), self.host.processes())
        self.checks = NodeChecks(reader, self.monitor, self._count, self.note, clock=self.clock, metrics=self.metrics)

    async def _count(self) -> int:
        return self.count

    def metric(self, check: str, result: str) -> float | None:
        return self.metrics.registry.get_sample_value(
            "neuron_dra_plugin_node_check", {"check": check, "result": result}
        )


async def test_what_changes_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    world = NodeWorld(tmp_path)

    await world.monitor.refresh()
    await world.checks.look()
    assert world.metric("devices", "well") == 1
    assert world.metric("devices", "wrong") == 0
    shown = {each["check"]: each["result"] for each in json.loads(world.note.text)}
    assert shown["device nodes"] == "wrong", "an emulated tree has files there"
    assert "devices" not in shown
    said = node_checks(world.checks)
    assert said is not None
    assert (said.reason, said.warning) == ("NodeCheckFailed", True)
    assert "device nodes: no character devices: /dev/neuron0" in said.message
    caplog.clear()
    await world.checks.look()
    assert not caplog.records, "nothing changed"
    shutil.rmtree(world.node.device_directory(3))
    await world.monitor.refresh()
    await world.checks.look()
    assert world.metric("devices", "wrong") == 1
    [record] = [each for each in caplog.records if getattr(each, "check", "") == "devices"]
    assert record.levelno == logging.WARNING


async def test_open_handles_are_looked_at_after_each_preparation_and_files_at_times(tmp_path: Path) -> None:
    world = NodeWorld(tmp_path)

    await world.monitor.refresh()
    await world.checks.look()
    assert world.metric("open handles", "well") == 1
    world.host.proc.add(7, "neuron-top", "0::/\n", f"{world.host.proc.dev}/neuron1")
    (world.host.proc.root / "proc/7/mountinfo").write_text("")
    await world.checks.look()
    assert world.metric("open handles", "well") == 1, "not at every look: it reads every process"
    world.count = 1
    await world.checks.look()
    assert world.metric("open handles", "wrong") == 1
    (tmp_path / "lnc").write_text("NEURON_LOGICAL_NC_CONFIG=1\n")
    await world.checks.look()
    assert world.metric("logical NeuronCore", "well") == 1
    world.clock.time += WAITS.files + 1
    await world.checks.look()
    assert world.metric("logical NeuronCore", "note") == 1


def test_the_annotation_is_bounded_and_names_faults_only() -> None:
    findings = (
        NodeFinding("devices", Grade.WELL, "16"),
        NodeFinding("links", Grade.NOTE, "x" * 1000, "Report it."),
        NodeFinding("CDI", Grade.WRONG, "off", "Enable it."),
        NodeFinding("EFA", Grade.UNKNOWN, "not seen"),
    )
    shown = json.loads(note(findings))
    assert [(each["check"], each["result"], len(each["found"])) for each in shown] == [
        ("links", "note", 200),
        ("CDI", "wrong", 3),
    ]
    assert note(findings[:1]) == ""
    assert event_text(findings[1:3]).startswith("CDI: off. Enable it. links: xxx")


def run_check(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    flags = {
        "node-name": "node-1",
        "kubeconfig": tmp_path / "none",
        "emulate": "trn2.48xlarge",
        "cdi-dir": tmp_path,
        "kubelet-plugins-dir": tmp_path / "p",
        "pod-resources-socket": tmp_path / "none.sock",
    }
    given = [f"--{key}={value}" for key, value in flags.items()]
    done = forked.run("kubeletplugin", ["check", *given, *arguments], cwd=tmp_path, environment=os.environ)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def test_the_command_prints_each_check_and_writes_a_report(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    (tmp_path / "p/neuron.aws.com").mkdir(parents=True)
    done = run_check(tmp_path, f"--report={report}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "well     kernel driver: version 2.25.4.0, whose sysfs tree is that of before 2.31." in done.stdout
    assert "unknown  CDI: the Node cannot be read: " in done.stdout
    content = json.loads(report.read_text())
    assert {each["check"]: each["result"] for each in content["findings"]}["devices"] == "well"
    assert content["files"]["devices/virtual/neuron_device"]["neuron0/core_count"] == "8"
    assert content["files"]["devices/virtual/neuron_device"]["neuron0/info/serial_number"] == "hidden"
    assert "node-1" not in report.read_text()
    assert content["readings"]["hardware"]["devices"][0]["serial"] == "hidden"


def test_the_command_ends_with_1_if_something_is_wrong(tmp_path: Path) -> None:
    done = run_check(tmp_path, f"--cdi-dir={tmp_path / 'none'}")
    assert done.returncode == 1
    assert f"wrong    test write: a test file cannot be written in {tmp_path / 'none'} (No such file or directory)" in (
        done.stdout
    )


def test_a_report_that_cannot_be_written_and_wrong_flags_are_said(tmp_path: Path) -> None:
    (tmp_path / "p/neuron.aws.com").mkdir(parents=True)
    done = run_check(tmp_path, f"--report={tmp_path / 'no/folder'}")
    assert (done.returncode, "cannot be written: No such file or directory" in done.stderr) == (3, True), done
    done = run_check(tmp_path, "--emulate=trn9.48xlarge")
    assert (done.returncode, "There is no instance type 'trn9.48xlarge' to emulate" in done.stderr) == (3, True), done


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        (
            ["/usr/bin/python3", "/opt/x/bin/neuron-dra-kubelet-plugin", "--proc-root=/host/proc", "--no-claim-status"],
            {"proc_root": "/host/proc", "claim_status": False},
        ),
        (["neuron-dra-kubelet-plugin", "--emulate=trn1.32xlarge"], {"emulate": "trn1.32xlarge"}),
        (["/sbin/init"], {}),
        (["neuron-dra-kubelet-plugin", "--of-another-version=1"], {}),
        ([], {}),
    ],
)
def test_the_flags_of_the_driver_of_this_container(tmp_path: Path, words: list[str], flags: dict[str, object]) -> None:
    (tmp_path / "cmdline").write_bytes("".join(f"{word}\0" for word in words).encode())
    assert cli._flags_of_driver(tmp_path / "cmdline") == flags
    assert cli._flags_of_driver(tmp_path / "none") == {}
