"""`make release`: everything that users of a version get, in one folder.

Input: the folder with the wheels and the SBOMs. Output there: images and chart as OCI layouts, the chart's archive,
`install.yaml`, the plugin for krew, metadata for Artifact Hub, notes, checksums, provenance and, with a key,
signatures. Two runs on one commit write the same files, except for signatures.
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import helm_python as helm
import yaml

from deploy import oci, render, signing

ROOT: Final = Path(__file__).resolve().parents[1]
CHART: Final = ROOT / "deploy" / "chart"
CHART_REPOSITORY: Final = "charts/neuron-dra"
TARGETS: Final = {"webhook": "neuron-dra", "kubelet-plugin": "neuron-dra-kubelet-plugin"}
"""Target of the Dockerfile -> repository."""
VALUES: Final = {"webhook": "webhook", "kubelet-plugin": "kubeletPlugin"}
"""Target of the Dockerfile -> value of the chart."""
IMAGES: Final = {"webhook": "WEBHOOK_DIGEST", "kubeletPlugin": "KUBELET_PLUGIN_DIGEST"}
"""Value of the chart that has `image.digest` -> variable of `make release`."""
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")


class ReleaseError(Exception):
    """The repository's state cannot be released; the message says why and what to do."""


def check_versions(root: Path) -> str:
    """The version that the package, the chart and the changelog agree on.

    Raises:
        ReleaseError: they differ, or another version of kubecel is required than the one in the repository.
    """
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    version = str(project["version"])
    own = tomllib.loads((root / "kubecel" / "pyproject.toml").read_text())["project"]["version"]
    [required] = [each for each in project["optional-dependencies"]["webhook"] if each.startswith("kubecel")]
    if required != f"kubecel=={own}":
        raise ReleaseError(
            f"pyproject.toml requires {required}, kubecel/pyproject.toml has version {own}: "
            "set the same version in both."
        )
    chart = yaml.safe_load((root / "deploy" / "chart" / "Chart.yaml").read_text())
    for field in ("version", "appVersion"):
        if str(chart[field]) != version:
            raise ReleaseError(
                f"deploy/chart/Chart.yaml has {field} {chart[field]}, pyproject.toml has version {version}: "
                "set the same version in both."
            )
    return version


def check_digests(digests: Mapping[str, str]) -> None:
    """Check that every image of the chart has a digest.

    Args:
        digests: value of the chart -> digest.

    Raises:
        ReleaseError: one is missing, or is no digest.
    """
    for value, variable in IMAGES.items():
        digest = digests.get(value, "")
        if not _DIGEST.fullmatch(digest):
            wrong = f"{variable} is '{digest}', which is no digest" if digest else f"{variable} is not set"
            raise ReleaseError(
                f"{wrong}: put buildah on the PATH, which builds the images here; or push the images, and set it to "
                "the digest of the pushed image (sha256:…), as `docker buildx imagetools inspect <image>` prints it. "
                "UNPINNED=1 packages a chart that finds its images by tag."
            )


def package_chart(destination: Path, digests: Mapping[str, str], notes: str = "", epoch: int = 0) -> Path:
    """The chart as an archive in a folder.

    Args:
        destination: the folder.
        digests: value of the chart (`IMAGES`) -> digest; images without one keep their tag.
        notes: the version's section of the changelog.
        epoch: time of all files, in Unix seconds.
    """
    with tempfile.TemporaryDirectory() as temporary:
        chart = Path(temporary) / CHART.name
        shutil.copytree(CHART, chart)
        values = chart / "values.yaml"
        values.write_text(with_digests(values.read_text(), digests))
        with (chart / "Chart.yaml").open("a") as about:
            about.write(yaml.safe_dump(chart_metadata(notes), sort_keys=False, width=1000))
        made = Path(helm.package(str(chart), destination=temporary))
        with tarfile.open(made) as archive:
            files = {each.name: _content(archive, each) for each in archive.getmembers() if each.isfile()}
        packed = destination / made.name
        packed.write_bytes(tarball(files, epoch))
        return packed


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    reader = archive.extractfile(member)
    assert reader is not None  # noqa: S101 - a file has content
    return reader.read()


def tarball(files: Mapping[str, bytes], epoch: int, executable: str = "") -> bytes:
    """A `.tar.gz` that depends on its arguments only.

    Args:
        files: name -> content.
        epoch: time of all files, in Unix seconds.
        executable: name of a file that can be run.
    """
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=0, filename="") as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for name, content in sorted(files.items()):
            about = tarfile.TarInfo(name)
            about.size, about.mtime, about.mode = len(content), epoch, 0o755 if name == executable else 0o644
            archive.addfile(about, io.BytesIO(content))
    return packed.getvalue()


def with_digests(values: str, digests: Mapping[str, str]) -> str:
    """The text of values.yaml with digests; its comments stay.

    Raises:
        ReleaseError: it has no empty `image.digest` there.
    """
    for value, digest in digests.items():
        field = re.compile(rf'(?m)(^{value}:\n(?:(?:  .*)?\n)*?  image:\n(?:    .*\n)*?    digest: )""$')
        values, count = field.subn(rf'\g<1>"{digest}"', values, count=1)
        if count != 1:
            raise ReleaseError(f'deploy/chart/values.yaml has no {value}.image.digest: "": keep this line.')
    return values


# --- images -----------------------------------------------------------------------------------------------------


def build_images(folder: Path, version: str, epoch: int, platforms: str, base: str) -> dict[str, str]:
    """Build both images with buildah, as layouts in a folder.

    Args:
        folder: of the release.
        version: tag of the images.
        epoch: time of all files in them, in Unix seconds.
        platforms: such as `linux/amd64,linux/arm64`; empty: that of this machine.
        base: base image instead of the Dockerfile's; empty: that one.

    Returns:
        Value of the chart -> digest.

    Raises:
        ReleaseError: buildah failed.
    """
    arguments = {"SOURCE_DATE_EPOCH": str(epoch)} | ({"PYTHON_IMAGE": base} if base else {})
    digests = {}
    for target, repository in TARGETS.items():
        layout = folder / signing.IMAGES / repository
        layout.parent.mkdir(parents=True, exist_ok=True)
        # One name for each run: buildah adds to a list of images that exists.
        name = f"localhost/{repository}-release-{os.getpid()}"
        options = [f"--build-arg={key}={value}" for key, value in arguments.items()]
        options += [f"--platform={platforms}"] if platforms else []
        options += [
            f"--manifest={name}",
            f"--timestamp={epoch}",
            f"--file={ROOT / 'deploy' / 'Dockerfile'}",
            f"--target={target}",
        ]
        try:
            _buildah("build", *options, str(ROOT))
            _buildah("manifest", "push", "--all", name, f"oci:{layout}:{version}")
        finally:
            _buildah("manifest", "rm", name, check=False)
        digests[VALUES[target]] = oci.Layout(layout).tags[version]["digest"]
    return digests


def _buildah(*arguments: str, check: bool = True) -> None:
    done = subprocess.run(["buildah", *arguments], stdout=sys.stderr, check=False)  # noqa: S603, S607
    if check and done.returncode:
        raise ReleaseError(
            f"buildah {' '.join(arguments)}: exit code {done.returncode} (its output is above). For a platform that is "
            "not this machine's, install qemu-user-static; where containers cannot be started, set "
            "BUILDAH_ISOLATION=chroot."
        )


# --- notes ------------------------------------------------------------------------------------------------------


def section(changelog: str, version: str, trial: bool) -> str:
    """The changelog's section about a version, without its heading.

    Args:
        changelog: text of CHANGELOG.md.
        version: the version.
        trial: take `## Unreleased` where there is no section.

    Raises:
        ReleaseError: there is no section.
    """
    sections: dict[str, str] = dict(re.findall(r"(?ms)^## (\S+).*?\n(.*?)(?=^## |\Z)", changelog))
    found = sections.get(version, sections.get("Unreleased", "") if trial else "")
    if not found.strip():
        raise ReleaseError(
            f"CHANGELOG.md has no section '## {version} - <date>': move the entries of '## Unreleased' there. "
            "UNPINNED=1 takes those of '## Unreleased'."
        )
    return found.strip() + "\n"


def chart_metadata(notes: str) -> dict[str, Any]:
    """What a released chart has beside Chart.yaml: where the project is, by HOMEPAGE, and what Artifact Hub reads."""
    annotations: dict[str, Any] = {"annotations": hub_annotations(notes)}
    home = os.environ.get("HOMEPAGE", "").rstrip("/")
    if not home:
        return annotations
    icon = f"{home}/raw/v{check_versions(ROOT)}/deploy/chart/icon.svg"
    return {"home": home, "sources": [home], "icon": icon, **annotations}


_HUB_KINDS: Final = ("added", "changed", "deprecated", "removed", "fixed", "security")


def hub_annotations(notes: str) -> dict[str, str]:
    """What Artifact Hub reads from Chart.yaml: the first sentence of each entry of the changelog."""
    changes = []
    for kind, entries in re.findall(r"(?ms)^### (\w+)\n(.*?)(?=^### |\Z)", notes):
        for entry in re.findall(r"(?ms)^- (.*?)(?=^- |\Z)", entries):
            first = re.split(r"(?<=[.!?])\s", " ".join(entry.split()), maxsplit=1)[0]
            changes.append({"kind": kind.lower(), "description": first})
    annotations = {"artifacthub.io/license": "Apache-2.0", "artifacthub.io/category": "ai-machine-learning"}
    if known := [each for each in changes if each["kind"] in _HUB_KINDS]:
        annotations["artifacthub.io/changes"] = yaml.safe_dump(known, sort_keys=False, width=1000, allow_unicode=True)
    return annotations


def changed_values(before: str, after: str) -> list[str]:
    """Values of the chart that are new, gone, or have another default.

    Args:
        before: values.yaml of the earlier version.
        after: values.yaml now.
    """
    old, new = (dict(_flat(yaml.safe_load(each) or {})) for each in (before, after))
    lines = []
    for name in sorted(old.keys() | new.keys()):
        if name not in old:
            lines.append(f"new: `{name}`, default `{json.dumps(new[name])}`")
        elif name not in new:
            lines.append(f"removed: `{name}`; `helm upgrade` refuses it")
        elif old[name] != new[name]:
            lines.append(f"other default: `{name}`, `{json.dumps(old[name])}` -> `{json.dumps(new[name])}`")
    return lines


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, each in values.items():
        if isinstance(each, dict) and each:
            yield from _flat(each, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", each


def upgrade_notes() -> str:
    """What an administrator needs to know before the upgrade from the last tag."""
    tag = _git("describe", "--tags", "--abbrev=0", "--match=v*", "HEAD^")
    if not tag:
        return "There is no earlier version.\n"
    values = "deploy/chart/values.yaml"
    lines = changed_values(_git("show", f"{tag}:{values}"), (ROOT / values).read_text())
    return f"Values of the chart, compared with {tag}:\n\n" + "".join(f"- {each}\n" for each in lines or ["no change"])


def _git(*arguments: str) -> str:
    """The output of git; empty without git, and if it fails, as in a source archive."""
    if shutil.which("git") is None:
        return ""
    command = ["git", "-C", str(ROOT), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    return done.stdout.strip() if done.returncode == 0 else ""


_NOTES: Final = """\
# neuron-dra {version}

{images}
## Upgrade

```
helm upgrade neuron-dra <chart> --namespace neuron-dra --reset-then-reuse-values
```

Go back with `helm rollback`; docs/driver.md names what the driver of an earlier version does not know. {upgrade}
## Check the files

```
sha256sum --check SHA256SUMS
base64 -d SHA256SUMS.sig > SHA256SUMS.der
openssl dgst -sha256 -verify signing.pub -signature SHA256SUMS.der SHA256SUMS
```

Take `signing.pub` from a place that you trust, not from this folder. docs/install.md (A release) has the other ways.

## Changes

{changes}"""


# --- kubectl ----------------------------------------------------------------------------------------------------


def krew(folder: Path, version: str, epoch: int, downloads: str) -> None:
    """Write the archive of `kubectl neuron` and its manifest for krew.

    Args:
        folder: of the release, with the wheels.
        version: the version.
        epoch: time of all files, in Unix seconds.
        downloads: URL of the folder from which users download the archive.
    """
    files = {
        "kubectl-neuron": (ROOT / "deploy" / "kubectl-neuron").read_bytes(),
        "requirements.txt": (ROOT / "requirements" / "webhook.txt").read_bytes(),
        "LICENSE": (ROOT / "LICENSE").read_bytes(),
        **{wheel.name: wheel.read_bytes() for wheel in folder.glob("*.whl")},
    }
    archive = folder / f"kubectl-neuron-{version}.tar.gz"
    archive.write_bytes(tarball(files, epoch, executable="kubectl-neuron"))
    platform = {
        "selector": {"matchExpressions": [{"key": "os", "operator": "In", "values": ["linux", "darwin"]}]},
        "uri": f"{downloads.rstrip('/')}/{archive.name}",
        "sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
        "bin": "kubectl-neuron",
    }
    manifest = {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "neuron"},
        "spec": {
            "version": f"v{version}",
            "shortDescription": "AWS Neuron workloads and devices under DRA",
            "description": (
                "Converts, validates and explains workloads that request AWS Neuron devices, and shows which pod holds "
                "which device."
            ),
            "caveats": (
                "Needs Python 3.11 or later. On first use it installs its locked packages into "
                "~/.cache/kubectl-neuron, from the package index of pip's settings."
            ),
            **({"homepage": os.environ["HOMEPAGE"]} if os.environ.get("HOMEPAGE") else {}),
            "platforms": [platform],
        },
    }
    (folder / "neuron.yaml").write_text(yaml.safe_dump(manifest, sort_keys=False, width=1000))


# --- the whole release ------------------------------------------------------------------------------------------


def write_checksums(folder: Path) -> str:
    """Write `SHA256SUMS` for all files of a release, sorted by name."""
    text = "".join(f"{digest}  {name}\n" for name, digest in signing.files_of(folder).items())
    (folder / signing.SUMS).write_text(text)
    return text


def predicate(version: str, parameters: Mapping[str, str]) -> dict[str, Any]:
    """SLSA provenance: from what, how and by whom this folder was made."""
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text()
    base = parameters.get("PYTHON_IMAGE") or re.findall(r"^ARG PYTHON_IMAGE=(.*)$", dockerfile, re.MULTILINE)[0]
    locks = ("dev.txt", "webhook.txt", "kubelet-plugin.txt")
    name, _, digest = base.partition("@sha256:")
    materials: list[dict[str, Any]] = [
        {
            "name": f"requirements/{each}",
            "digest": {"sha256": hashlib.sha256((ROOT / "requirements" / each).read_bytes()).hexdigest()},
        }
        for each in locks
    ]
    materials.append({"name": name} | ({"digest": {"sha256": digest}} if digest else {}))
    if commit := _git("rev-parse", "HEAD"):
        materials.append({"uri": f"git+{os.environ.get('HOMEPAGE', '')}", "digest": {"gitCommit": commit}})
    run = os.environ.get("BUILD_URL", "")
    return {
        "buildDefinition": {
            "buildType": signing.BUILD_TYPE,
            "externalParameters": {"command": "make release", "version": version, **parameters},
            "internalParameters": {"changedFiles": bool(_git("status", "--porcelain", "--untracked-files=no"))},
            "resolvedDependencies": materials,
        },
        "runDetails": {
            "builder": {"id": run.partition("/actions/runs/")[0] or "urn:neuron-dra:local"},
            "metadata": {"invocationId": run} if run else {},
        },
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    for value, variable in IMAGES.items():
        parser.add_argument(f"--{value}", default="", help=f"{variable}: digest of a pushed image")
    parser.add_argument("--unpinned", action="store_true", help="a trial: images by tag, changes of ## Unreleased")
    parser.add_argument("--platforms", default="", help="such as linux/amd64,linux/arm64")
    parser.add_argument("--base", default="", help="base image")
    parser.add_argument("--registry", default="", help="registry and path in front of the images in install.yaml")
    parser.add_argument("--downloads", default="", help="URL of the folder with the files of this release")
    parser.add_argument("--key", type=Path, help="private key in PEM")
    given = parser.parse_args(arguments)
    try:
        print(make(given))
    except (ReleaseError, signing.SigningError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def make(given: argparse.Namespace) -> str:
    """Make the release; what was made.

    Raises:
        ReleaseError: the repository's state or the settings do not allow it.
        SigningError: the key cannot be used.
    """
    folder: Path = given.folder
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or _git("log", "-1", "--format=%ct") or 0)
    key = signing.Key(given.key, os.environ.get("SIGNING_KEY_PASSWORD")) if given.key else None
    version = check_versions(ROOT)
    digests = {value: vars(given)[value] for value in IMAGES if vars(given)[value]}
    builds = not digests and shutil.which("buildah")
    if not builds and not given.unpinned:
        check_digests(digests)
    changes = section((ROOT / "CHANGELOG.md").read_text(), version, given.unpinned)
    said = []
    if builds:
        digests = build_images(folder, version, epoch, given.platforms, given.base)
    elif not digests:
        said.append("No images: buildah is not on the PATH.")
    _write_deployables(folder, digests, changes, epoch, given)
    if not given.registry:
        said.append(
            "install.yaml names the images without a registry: set REGISTRY, such as registry.example.com/neuron."
        )
    if given.downloads:
        krew(folder, version, epoch, given.downloads)
    else:
        said.append("No plugin for krew: set DOWNLOADS to the URL of the folder from which users download these files.")
    pinned = "".join(
        f"- `{TARGETS[target]}@{digests[value]}`\n" for target, value in VALUES.items() if value in digests
    )
    notes = _NOTES.format(version=version, images=pinned, upgrade=upgrade_notes(), changes=changes)
    (folder / "RELEASE.md").write_text(notes)
    shutil.copy(ROOT / "deploy" / "push.sh", folder)
    write_checksums(folder)
    parameters = {
        "PYTHON_IMAGE": given.base,
        "PLATFORMS": given.platforms,
        "REGISTRY": given.registry,
        "DOWNLOADS": given.downloads,
    }
    about = predicate(version, {name: value for name, value in parameters.items() if value})
    signing.write_provenance(folder, about)
    if key:
        signing.sign_release(folder, key, about, given.registry.rstrip("/"))
    else:
        said.append(
            "Not signed: set SIGNING_KEY to a private key, or use `sigstore`, as .github/workflows/release.yaml does."
        )
    return "\n".join([f"neuron-dra {version}, {folder}:", *(f"  {each}" for each in _overview(folder)), *said])


def _write_deployables(
    folder: Path, digests: Mapping[str, str], changes: str, epoch: int, given: argparse.Namespace
) -> None:
    """Write the chart, as archive and as layout, and `install.yaml`."""
    archive = package_chart(folder, digests, changes, epoch)
    layout = oci.Layout(folder / signing.IMAGES / CHART_REPOSITORY)
    created = datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    with tarfile.open(archive) as packed:
        about = yaml.safe_load(_content(packed, packed.getmember("neuron-dra/Chart.yaml")))
    oci.add_chart(layout, archive.read_bytes(), about, created)
    hub = folder / "artifacthub-repo.yml"
    hub.write_text(yaml.safe_dump({"repositoryID": os.environ.get("ARTIFACTHUB_ID", ""), "owners": []}))
    oci.add_hub_metadata(layout, hub.read_text())
    images = {value: {"image": {"digest": digest}} for value, digest in digests.items()}
    (folder / "install.yaml").write_text(render.install({"image": {"registry": given.registry}, **images}))


def _overview(folder: Path) -> Sequence[str]:
    files = sorted(each.name for each in folder.iterdir() if each.is_file())
    return [*files, *(f"oci/{name}@{digest}" for name, digest in signing.manifests_of(folder).items())]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
