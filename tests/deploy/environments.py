"""A virtual environment with the wheels of this repository and its locked requirements, without a package index."""

import importlib.metadata
import re
import subprocess
import sys
import venv
from importlib.util import cache_from_source
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_LOCKS: Final = Path(__file__).resolve().parents[2] / "requirements"


def locked(lock: str) -> dict[str, tuple[Requirement, frozenset[str]]]:
    """Requirement and hashes by canonical name."""
    found = {}
    for entry in re.split(r"\n(?=\S)", (_LOCKS / lock).read_text().replace("\\\n", "").strip()):
        requirement = Requirement(entry.partition("--hash=")[0])
        found[canonicalize_name(requirement.name)] = requirement, frozenset(re.findall(r"--hash=(\S+)", entry))
    return found


def make_environment(home: Path, wheels: Path, image: str) -> Path:
    """`bin` of a virtual environment with the wheels of a folder, and with what the lock of an image installs here.

    Those packages, and what is compiled of them, are links to the ones of this environment: `make install` checked
    their hashes.
    """
    venv.create(home, symlinks=True)
    [target] = home.glob("lib/python*/site-packages")
    for name, (requirement, _) in locked(f"{image}.txt").items():
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue
        distribution = importlib.metadata.distribution(name)
        assert distribution.version in requirement.specifier
        for file in distribution.files or ():
            if ".." in file.parts or file.suffix == ".pyc":  # scripts; compiled with its source
                continue
            (target / file).parent.mkdir(parents=True, exist_ok=True)
            (target / file).symlink_to(Path(str(file.locate())))
            if file.suffix == ".py" and (source := Path(cache_from_source(str(file.locate())))).exists():
                cached = Path(cache_from_source(str(target / file)))
                cached.parent.mkdir(exist_ok=True)
                cached.symlink_to(source)
    # Requirements are looked up among the wheels and the installed packages only: a lock that lacks one fails here.
    pip = [sys.executable, "-m", "pip", "--python", home / "bin" / "python", "--quiet", "install", "--no-compile"]
    options = ["--no-index", f"--find-links={wheels}", f"neuron-dra[{image},tracing]"]
    done = subprocess.run([*pip, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return home / "bin"
