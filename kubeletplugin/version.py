"""The version of this driver that devices show."""

import importlib.metadata
import re
from typing import Final

_DISTRIBUTION: Final = "neuron-dra"
_SEMVER: Final = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?(?:(a|b|rc|\.dev)(\d+))?")
_PRE_RELEASES: Final = {"a": "alpha", "b": "beta", "rc": "rc", ".dev": "dev"}


def driver_version(python_version: str | None = None) -> str:
    """This driver's version as a semantic version: the API server denies an attribute with another one.

    Args:
        python_version: the version by PEP 440; None: that of the installed distribution.
    """
    if python_version is None:
        python_version = importlib.metadata.version(_DISTRIBUTION)
    match = _SEMVER.match(python_version)
    if match is None:
        return "0.0.0"
    major, minor, patch, stage, number = match.groups()
    release = f"{int(major)}.{int(minor)}.{int(patch or 0)}"
    return f"{release}-{_PRE_RELEASES[stage]}.{int(number)}" if stage else release
