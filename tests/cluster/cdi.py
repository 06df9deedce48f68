"""What a container runtime makes of CDI device ids: spec files looked up, and their edits applied.

Source: Container Device Interface specification (containerEdits of a spec once, then those of its devices). A spec that
contradicts its schema ends the test.
"""

import dataclasses
import functools
import json
from collections.abc import Iterable
from pathlib import Path

import yaml

from tests.cluster.api import Object
from tests.conformance.schemas import cdi_faults


class UnresolvableError(LookupError):
    """Some device ids are in no spec file, or in more than one."""


@dataclasses.dataclass
class Edits:
    """What a container gets.

    Attributes:
        env: environment; what comes later wins.
        devices: path in the container -> path on the host.
        mounts: path in the container -> (path on the host, options).
    """

    env: dict[str, str] = dataclasses.field(default_factory=dict)
    devices: dict[str, str] = dataclasses.field(default_factory=dict)
    mounts: dict[str, tuple[str, tuple[str, ...]]] = dataclasses.field(default_factory=dict)

    def apply(self, edits: Object) -> None:
        """Apply one `containerEdits`."""
        for entry in edits.get("env", ()):
            name, _, value = entry.partition("=")
            self.env[name] = value
        for node in edits.get("deviceNodes", ()):
            self.devices[node["path"]] = node.get("hostPath", node["path"])
        for mount in edits.get("mounts", ()):
            self.mounts[mount["containerPath"]] = (mount["hostPath"], tuple(mount.get("options", ())))


def specs(directory: Path) -> list[Object]:
    """The spec files of a directory, by name; shared, not to be changed."""
    found = []
    for path in sorted(path for path in directory.iterdir() if path.suffix in (".json", ".yaml")):
        status = path.stat()
        found.append(_parsed(path, (status.st_ino, status.st_mtime_ns, status.st_size)))
    return found


@functools.lru_cache(1024)
def _parsed(path: Path, _identity: tuple[int, int, int]) -> Object:
    # Every container looks at all specs: a hundred pods would parse ten thousand.
    parsed: Object = (json.loads if path.suffix == ".json" else yaml.safe_load)(path.read_text())
    faults = cdi_faults(parsed)
    assert not faults, f"{path}: {faults}"
    return parsed


def resolve(directory: Path, ids: Iterable[str], edits: Edits) -> Edits:
    """Apply the edits of devices, in the order of their ids, to what the container has already.

    Raises:
        UnresolvableError: names the ids.
    """
    found: dict[str, list[tuple[int, Object, Object]]] = {}
    for index, spec in enumerate(specs(directory)):
        for device in spec["devices"]:
            found.setdefault(f"{spec['kind']}={device['name']}", []).append((index, spec, device))
    wanted = list(dict.fromkeys(ids))
    missing = [each for each in wanted if len(found.get(each, ())) != 1]
    if missing:
        raise UnresolvableError(f"unresolvable CDI devices {', '.join(missing)}")
    applied: set[int] = set()
    for each in wanted:
        [(index, spec, device)] = found[each]
        if index not in applied:
            applied.add(index)
            edits.apply(spec.get("containerEdits", {}))
        edits.apply(device.get("containerEdits", {}))
    return edits
