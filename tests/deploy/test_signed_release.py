"""A whole release: two runs are equal, signatures and provenance hold, Helm installs from it, and it can be pushed."""

import base64
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import helm_python as helm
import pytest
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from deploy import oci, release, signing
from tests.deploy import registry as registries
from tests.deploy.charts import ROOT
from tests.deploy.environments import make_environment
from tests.deploy.registry import Registry

CHART = "charts/neuron-dra"
DIGESTS = {"webhook": f"sha256:{'a' * 64}", "kubeletPlugin": f"sha256:{'b' * 64}"}
SET = [f"--{value}={digest}" for value, digest in DIGESTS.items()]
EPOCH = 1764000000
DOWNLOADS = "https://downloads.example.com/v1"
NO_NETWORK = {"https_proxy": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9"}


def write_key(file: Path, key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey, password: str = "") -> Path:
    how = serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
    form = serialization.PrivateFormat.PKCS8
    file.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, how))
    return file


def make(folder: Path, *arguments: str, bills: Path | None = None) -> str:
    """What `make release` does; its output. The bills of materials can be those of an earlier run."""
    folder.mkdir()
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH)}
    wheel = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    # In a copy: setuptools reuses the folder `build` of a source.
    source = folder.with_name(f"{folder.name}-source")
    names = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for name in names:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif "/" not in name:
            shutil.copy(ROOT / name, source)
    subprocess.run(
        [*wheel, "--wheel-dir", folder, source / "kubecel", source], check=True, capture_output=True, env=environment
    )
    for bill in bills.glob("sbom-*") if bills else ():
        shutil.copy(bill, folder)
    for image in () if bills else release.TARGETS:
        command = [
            Path(sys.executable).with_name("cyclonedx-py"),
            "requirements",
            "--output-reproducible",
            "--of",
            "JSON",
        ]
        command += ["--pyproject", ROOT / "pyproject.toml", "-o", folder / f"sbom-{image}.cdx.json", "-"]
        subprocess.run(
            command, input=contents(image).encode(), check=True, capture_output=True, env={**environment, **NO_NETWORK}
        )
    return pack(folder, *arguments)


def contents(image: str) -> str:
    """The lock of an image, and what it has besides from this repository."""
    kubecel = re.findall(r"kubecel==[0-9.]+", (ROOT / "pyproject.toml").read_text()) if image == "webhook" else []
    return "\n".join([(ROOT / "requirements" / f"{image}.txt").read_text(), *kubecel])


def pack(folder: Path, *arguments: str, epoch: int = EPOCH) -> str:
    """The last step of `make release`, in the folder with what the others wrote; its output."""
    done = subprocess.run(
        [sys.executable, "-m", "deploy.release", folder, "--unpinned", *SET, *arguments],
        cwd=ROOT, env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_key(tmp_path_factory.mktemp("key") / "signing.key", ec.generate_private_key(ec.SECP256R1()))


@pytest.fixture(scope="module")
def made(key: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release") / "dist"
    make(folder, f"--key={key}", f"--downloads={DOWNLOADS}", "--registry=registry.example.com/neuron")
    return folder


@pytest.fixture
def dist(made: Path, tmp_path: Path) -> Path:
    """A release that a test may damage."""
    return Path(shutil.copytree(made, tmp_path / "dist"))


@pytest.fixture
def registry() -> Iterator[Registry]:
    with registries.serving() as served:
        yield served


def public(key: Path) -> bytes:
    return signing.Key(key).public


def test_two_runs_write_the_same_files(made: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    said = make(again, f"--downloads={DOWNLOADS}", "--registry=registry.example.com/neuron", bills=made)
    assert "Not signed: set SIGNING_KEY" in said
    sums = (again / signing.SUMS).read_text()
    assert sums == (made / signing.SUMS).read_text()
    for name in (
        "neuron_dra-",
        "kubecel-",
        "neuron-dra-",
        "install.yaml",
        "sbom-webhook",
        "sbom-kubelet-plugin",
        "oci/",
        "neuron.yaml",
    ):
        assert f"  {name}" in sums
    assert (again / signing.STATEMENT_FILE).read_text() == (made / signing.STATEMENT_FILE).read_text()


@pytest.mark.parametrize("image", release.TARGETS)
def test_a_bill_of_materials_is_made_from_the_lock_without_a_network(made: Path, image: str) -> None:
    bill = json.loads((made / f"sbom-{image}.cdx.json").read_text())
    listed = {f"{each['name']}=={each['version']}" for each in bill["components"]}
    assert listed == set(re.findall(r"^([^\s=]+==[^\s;]+)", contents(image), re.MULTILINE))
    assert any(each.startswith("kubecel==") for each in listed) == (image == "webhook")
    about = bill["metadata"]["component"]
    assert (about["name"], about["version"]) == ("neuron-dra", release.check_versions(ROOT))


def test_another_time_makes_other_archives_with_the_same_content(made: Path, tmp_path: Path) -> None:
    (tmp_path / "later").mkdir()
    for pattern in ("*.whl", "sbom-*"):
        for file in made.glob(pattern):
            shutil.copy(file, tmp_path / "later")
    pack(tmp_path / "later", epoch=EPOCH + 2)
    [first, later] = [next(each.glob("neuron-dra-*.tgz")) for each in (made, tmp_path / "later")]
    assert first.read_bytes() != later.read_bytes()
    contents = []
    for file in (first, later):
        with tarfile.open(file) as archive:
            contents.append({each.name: archive.extractfile(each).read() for each in archive})  # type: ignore[union-attr]
    assert contents[0] == contents[1]


def test_a_release_names_what_it_left_out(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    command = [sys.executable, "-m", "deploy.release", tmp_path / "p", "--unpinned"]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PATH": "/nowhere"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-4:] == [
        "No images: buildah is not on the PATH.",
        "install.yaml names the images without a registry: set REGISTRY, such as registry.example.com/neuron.",
        "No plugin for krew: set DOWNLOADS to the URL of the folder from which users download these files.",
        "Not signed: set SIGNING_KEY to a private key, or use `sigstore`, as .github/workflows/release.yaml does.",
    ]


# --- signatures ----------------------------------------------------------------------------------------------------


def test_a_release_is_verified_by_its_public_key(made: Path, key: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert signing.main([str(made), str(made / signing.PUBLIC_KEY)]) == 0
    said = capsys.readouterr().out
    assert f"{CHART}:{release.check_versions(ROOT)}@sha256:" in said
    assert (made / signing.PUBLIC_KEY).read_bytes() == public(key)


def test_openssl_and_sha256sum_verify_a_release_as_the_notes_say(dist: Path) -> None:
    notes = (dist / "RELEASE.md").read_text()
    commands = notes.partition("## Check the files\n\n```\n")[2].partition("```")[0]
    done = subprocess.run(["sh", "-euc", commands], cwd=dist, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "Verified OK"


def test_openssl_verifies_the_signature_and_the_provenance_of_each_manifest(made: Path, tmp_path: Path) -> None:
    """Without code of this project: the blobs of the layout, and DSSE's encoding by its specification."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl here: the signatures are verified by the library that made them")
    found = []
    for index in sorted((made / "signatures").rglob("index.json")):

        def blob(digest: str, blobs: Path = index.parent / "blobs") -> bytes:
            return (blobs / digest.replace(":", "/")).read_bytes()

        for entry in json.loads(index.read_text())["manifests"]:
            tag = entry["annotations"]["org.opencontainers.image.ref.name"]
            [layer] = json.loads(blob(entry["digest"]))["layers"]
            content = blob(layer["digest"])
            signature = layer["annotations"]["dev.cosignproject.cosign/signature"]
            if tag.endswith(".att"):
                envelope = json.loads(content)
                kind, payload = envelope["payloadType"].encode(), base64.b64decode(envelope["payload"])
                content = b"DSSEv1 " + b" ".join(b"%d %s" % (len(each), each) for each in (kind, payload))
                [signature] = [each["sig"] for each in envelope["signatures"]]
            (tmp_path / "content").write_bytes(content)
            (tmp_path / "signature").write_bytes(base64.b64decode(signature))
            command = ["openssl", "dgst", "-sha256", "-verify", made / signing.PUBLIC_KEY]
            command += ["-signature", tmp_path / "signature", tmp_path / "content"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert (done.returncode, done.stdout) == (0, "Verified OK\n"), (tag, done.stderr)
            found.append(tag.rpartition(".")[2])
    assert sorted(found) == sorted(["att", "sig"] * len(signing.manifests_of(made)))


def test_securesystemslib_opens_the_provenance(made: Path) -> None:
    dsse = pytest.importorskip("securesystemslib.dsse", reason="only with requirements/release.txt")
    signer = pytest.importorskip("securesystemslib.signer")
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    key = signer.SSlibKey.from_crypto(load_pem_public_key((made / signing.PUBLIC_KEY).read_bytes()))
    key.keyid = ""  # The envelope names no key.
    envelope = dsse.Envelope.from_dict(json.loads((made / signing.ENVELOPE_FILE).read_text()))
    assert envelope.verify([key], 1)


def change_file(dist: Path) -> None:
    with (dist / "install.yaml").open("a") as file:
        file.write("# another line\n")


def add_file(dist: Path) -> None:
    (dist / "other.whl").write_bytes(b"")


def remove_file(dist: Path) -> None:
    (dist / "install.yaml").unlink()


def change_sums(dist: Path) -> None:
    release.write_checksums(dist)
    with (dist / signing.SUMS).open("a") as file:
        file.write(f"{'0' * 64}  other\n")


def change_blob(dist: Path) -> None:
    layout = oci.Layout(dist / "oci" / CHART)
    layout.add_manifest("9.9.9", layout.add(oci.CHART_CONFIG, b"{}"), [])
    release.write_checksums(dist)


def change_statement(dist: Path) -> None:
    envelope = json.loads((dist / signing.ENVELOPE_FILE).read_text())
    statement = json.loads(base64.b64decode(envelope["payload"]))
    statement["predicate"]["runDetails"]["builder"]["id"] = "urn:somebody"
    envelope["payload"] = base64.b64encode(json.dumps(statement).encode()).decode()
    (dist / signing.ENVELOPE_FILE).write_text(json.dumps(envelope))


def remove_signature(dist: Path) -> None:
    (dist / signing.SUMS_SIGNATURE).unlink()


def remove_signatures_of_manifests(dist: Path) -> None:
    shutil.rmtree(dist / signing.SIGNATURES)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (change_file, "install.yaml: missing, added or changed since it was signed"),
        (add_file, "other.whl: missing, added or changed since it was signed"),
        (remove_file, "install.yaml: missing, added or changed since it was signed"),
        (change_sums, "SHA256SUMS: the signature is not of this content and this key: do not use it"),
        (change_blob, "SHA256SUMS: the signature is not of this content and this key: do not use it"),
        (change_statement, "provenance.dsse.json: the signature is not of this content and this key: do not use it"),
        (remove_signature, "SHA256SUMS.sig cannot be read (No such file or directory): the release is not signed"),
        (remove_signatures_of_manifests, ".sig: it is not signed"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_a_damaged_release_is_refused(
    dist: Path, key: Path, damage: object, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(dist)  # type: ignore[operator]
    (dist.parent / "pub").write_bytes(public(key))
    assert signing.main([str(dist), str(dist.parent / "pub")]) == 1
    assert said in capsys.readouterr().err


def test_the_key_of_somebody_else_is_refused(made: Path, tmp_path: Path) -> None:
    other = write_key(tmp_path / "other.key", ec.generate_private_key(ec.SECP256R1()))
    with pytest.raises(signing.SigningError, match=r"SHA256SUMS: the signature is not of this content and this key"):
        signing.verify_release(made, public(other))


@pytest.mark.parametrize("content", [b"", b"no key", b"\xff"], ids=["empty", "text", "bytes"])
def test_a_public_key_that_is_none_is_refused(made: Path, content: bytes) -> None:
    with pytest.raises(signing.SigningError, match="public key cannot be read"):
        signing.verify_release(made, content)


def test_a_provenance_about_other_files_is_refused(dist: Path, key: Path) -> None:
    (dist / "more.txt").write_text("more")
    release.write_checksums(dist)
    known = signing.Key(key)
    signature = base64.b64encode(known.sign((dist / signing.SUMS).read_bytes()))
    (dist / signing.SUMS_SIGNATURE).write_bytes(signature)
    with pytest.raises(signing.SigningError, match="is about other files or manifests"):
        signing.verify_release(dist, known.public)


def test_an_envelope_of_another_type_is_refused(dist: Path, key: Path) -> None:
    envelope = json.loads((dist / signing.ENVELOPE_FILE).read_text()) | {"payloadType": "text/plain"}
    with pytest.raises(signing.SigningError, match="the payload is text/plain, not application"):
        signing.opened(public(key), envelope, "x")


def test_an_attestation_of_another_manifest_is_refused(made: Path, key: Path) -> None:
    signatures = oci.Layout(made / signing.SIGNATURES / CHART)
    [first, second] = [each for name, each in signing.manifests_of(made).items() if name.startswith(CHART)]
    forged = {
        f"{second.replace(':', '-')}.{kind}": signatures.tags[f"{first.replace(':', '-')}.{kind}"]
        for kind in ("sig", "att")
    }

    class Forged(oci.Layout):
        tags = forged  # type: ignore[assignment]

    with pytest.raises(signing.SigningError, match=f"is about {first}: do not use it"):
        signing.verify_manifest(public(key), second, Forged(signatures.folder), "x")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read as a private key in PEM"),
        (b"no key", "cannot be read as a private key in PEM"),
        (ec.generate_private_key(ec.SECP384R1()), "is no EC key on the curve P-256: `openssl genpkey"),
        (ed25519.Ed25519PrivateKey.generate(), "is no EC key on the curve P-256"),
    ],
    ids=["missing", "text", "P-384", "Ed25519"],
)
def test_a_key_of_another_kind_is_refused(tmp_path: Path, content: object, said: str) -> None:
    file = tmp_path / "signing.key"
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif isinstance(content, ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey):
        write_key(file, content)
    with pytest.raises(signing.SigningError, match="SIGNING_KEY is") as caught:
        signing.Key(file)
    assert said in str(caught.value)


def test_an_encrypted_key_needs_its_password(tmp_path: Path) -> None:
    file = write_key(tmp_path / "signing.key", ec.generate_private_key(ec.SECP256R1()), "secret")
    assert signing.Key(file, "secret").public
    with pytest.raises(signing.SigningError, match="set SIGNING_KEY_PASSWORD"):
        signing.Key(file)


def test_the_provenance_names_the_commit_the_base_image_and_the_locks(made: Path) -> None:
    statement = json.loads((made / signing.STATEMENT_FILE).read_text())
    build = statement["predicate"]["buildDefinition"]
    named = {each.get("name", each.get("uri")) for each in build["resolvedDependencies"]}
    assert {"requirements/webhook.txt", "requirements/kubelet-plugin.txt", "requirements/dev.txt"} <= named
    assert any(str(each).startswith("python:") for each in named)
    assert build["externalParameters"]["REGISTRY"] == "registry.example.com/neuron"
    subjects = {each["name"] for each in statement["subject"]}
    assert {"install.yaml", "kubectl-neuron-0.1.0.tar.gz".replace("0.1.0", release.check_versions(ROOT))} <= subjects


# --- a registry ----------------------------------------------------------------------------------------------------


def test_helm_pulls_the_chart_from_a_registry(made: Path, registry: Registry, tmp_path: Path) -> None:
    registry.upload(made)
    version = release.check_versions(ROOT)
    helm.pull(f"oci://{registry.address}/{CHART}", version=version, destination=tmp_path, plain_http=True)
    pulled = tmp_path / f"neuron-dra-{version}.tgz"
    assert pulled.read_bytes() == (made / pulled.name).read_bytes()
    with helm.Chart.load(pulled) as chart:
        rendered = chart.render({}, name="neuron-dra", namespace="neuron-dra")
    assert f"image: neuron-dra@{DIGESTS['webhook']}" in "".join(rendered.values())


def test_a_signature_in_a_registry_is_verified(made: Path, key: Path, registry: Registry, tmp_path: Path) -> None:
    """As an admission controller does: from the digest to the tags, and from there to signature and provenance."""
    registry.upload(made)
    digest = oci.digest_of(registry.manifest(CHART, release.check_versions(ROOT)))
    layout = oci.Layout(tmp_path / "pulled")
    for kind in ("sig", "att"):
        tag = f"{digest.replace(':', '-')}.{kind}"
        about = json.loads(registry.manifest(CHART, tag))
        for blob in about["layers"]:
            layout.add(blob["mediaType"], registry.content[CHART, blob["digest"]])
        layout.add_manifest(tag, about["config"], about["layers"])
    signing.verify_manifest(public(key), digest, layout, CHART)


def push(made: Path, registry: Registry, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("skopeo") is None:
        pytest.skip("no skopeo here: what it would push is served from the folder in the other tests")
    (home / ".config/containers").mkdir(parents=True)
    (home / ".config/containers/policy.json").write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
    monkeypatch.setenv("HOME", str(home))
    command = [made / "push.sh", f"{registry.address}/team", "--dest-tls-verify=false"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("trusted", [True, False], ids=["key of the release", "key of somebody else"])
def test_a_policy_of_podman_and_cri_o_admits_what_the_key_signed(
    made: Path, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trusted: bool
) -> None:
    """By containers/image, as docs/releases.md says, from a mirror of the registry that the release names."""
    push(made, registry, tmp_path, monkeypatch)
    public_key = made / signing.PUBLIC_KEY
    if not trusted:
        public_key = tmp_path / "other.pub"
        other = write_key(tmp_path / "other.key", ec.generate_private_key(ec.SECP256R1()))
        public_key.write_bytes(public(other))
    guide = (ROOT / "docs/releases.md").read_text()
    written = guide.partition("`policy.json`:\n\n```json\n")[2].partition("```")[0]
    policy = written.replace("/etc/neuron-dra/signing.pub", str(public_key))
    policy = policy.replace("mirror.example.com", f"{registry.address}/team")
    (tmp_path / "policy.json").write_text(policy.replace("registry.example.com", "registry.example.com/neuron"))
    (tmp_path / "registries.d").mkdir()
    (tmp_path / "registries.d/neuron.yaml").write_text("default-docker: {use-sigstore-attachments: true}\n")
    version = release.check_versions(ROOT)
    done = subprocess.run(
        [
            *("skopeo", "--policy", tmp_path / "policy.json", "--registries.d", tmp_path / "registries.d"),
            *("copy", "--src-tls-verify=false", "--remove-signatures"),
            *(f"docker://{registry.address}/team/{CHART}:{version}", f"dir:{tmp_path / 'pulled'}"),
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "sigstore disabled" in done.stderr:
        pytest.skip("this skopeo was built without the verification of signatures, as Debian's are")
    assert (done.returncode == 0) is trusted, done.stderr
    assert trusted or "cryptographic signature verification failed" in done.stderr


def test_the_folder_can_be_pushed_without_another_network(
    made: Path, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(made, registry, tmp_path, monkeypatch)
    pushed = {f"{repository}:{tag}": digest for (repository, tag), digest in registry.tags.items()}
    expected = {f"team/{name}": digest for name, digest in signing.manifests_of(made).items()}
    assert expected.items() <= pushed.items()
    assert len(pushed) == 3 * len(expected)  # Each has a signature and an attestation.


@pytest.mark.parametrize(
    ("arguments", "said"),
    [([], "give the registry"), (["registry.example.com"], "skopeo is not on the PATH: install it")],
    ids=["no registry", "no skopeo"],
)
def test_a_push_that_cannot_begin_says_why(made: Path, arguments: list[str], said: str) -> None:
    done = subprocess.run(
        ["/bin/sh", made / "push.sh", *arguments], env={"PATH": "/nowhere"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert said in done.stderr


# --- the other files -----------------------------------------------------------------------------------------------


def test_install_yaml_names_the_images_by_registry_and_digest(made: Path) -> None:
    objects = [each for each in yaml.safe_load_all((made / "install.yaml").read_text()) if each]
    assert objects[0]["kind"] == "Namespace"
    images = {
        container["image"]
        for each in objects
        if each["kind"] in ("Deployment", "DaemonSet")
        for container in each["spec"]["template"]["spec"]["containers"]
    }
    prefix = "registry.example.com/neuron/neuron-dra"
    assert images == {f"{prefix}@{DIGESTS['webhook']}", f"{prefix}-kubelet-plugin@{DIGESTS['kubeletPlugin']}"}


def test_the_krew_manifest_is_of_the_archive(made: Path) -> None:
    manifest = yaml.safe_load((made / "neuron.yaml").read_text())
    version = release.check_versions(ROOT)
    assert (manifest["metadata"]["name"], manifest["spec"]["version"]) == ("neuron", f"v{version}")
    [platform] = manifest["spec"]["platforms"]
    archive = made / f"kubectl-neuron-{version}.tar.gz"
    assert platform["uri"] == f"{DOWNLOADS}/{archive.name}"
    assert platform["sha256"] == oci.digest_of(archive.read_bytes()).removeprefix("sha256:")
    with tarfile.open(archive) as packed:
        assert packed.getmember(platform["bin"]).mode == 0o755
        wheels = {each.name for each in made.glob("*.whl")}
        assert len(wheels) == 2
        assert {"LICENSE", "requirements.txt"} | wheels <= set(packed.getnames())


@pytest.fixture(scope="module")
def installed(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache of `kubectl neuron` with its environment: the wheels of the archive and the locked packages.

    Not by pip, which would ask an index: `test_the_plugin_installs_itself_from_an_index` does.
    """
    folder = unpack(made, tmp_path_factory.mktemp("unpacked"))
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    cache = tmp_path_factory.mktemp("cache")
    home = cache / "kubectl-neuron" / f"{release.check_versions(ROOT)}-{python}"
    make_environment(home, folder, "webhook")
    (home / "complete").touch()
    return cache


def unpack(made: Path, folder: Path) -> Path:
    """The archive as krew unpacks it: checked, into a folder of its own."""
    manifest = yaml.safe_load((made / "neuron.yaml").read_text())
    [platform] = manifest["spec"]["platforms"]
    archive = made / platform["uri"].rpartition("/")[2]
    assert oci.digest_of(archive.read_bytes()) == f"sha256:{platform['sha256']}"
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    return folder


PROGRAM_ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def test_the_wheel_converts_and_serves_in_a_clean_environment(installed: Path, tmp_path: Path) -> None:
    [home] = (installed / "kubectl-neuron").iterdir()
    pod = ROOT / "deploy/examples/legacy-pod/pod.yaml"

    def run(*command: str | Path) -> str:
        done = subprocess.run(
            [home / "bin" / command[0], *command[1:]],
            cwd=tmp_path, env=PROGRAM_ENVIRONMENT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    made = {each["kind"] for each in yaml.safe_load_all(run("neuron-dra", "convert", "-f", pod))}
    assert made == {"Pod", "ResourceClaimTemplate"}
    # A pod through the webhook and real TLS, as `make run` does.
    served = run("python", "-m", "commands.cli.demo", "--once", "--port=0", "--metrics-port=0", f"--pod={pod}")
    assert "resourceClaimTemplateName" in served
    assert "site-packages" in run("python", "-c", "import webhook; print(webhook.__path__)")


def test_kubectl_runs_the_plugin_as_krew_installs_it(made: Path, installed: Path, tmp_path: Path) -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("no kubectl on the PATH")
    # krew: a folder for each version, and a link in a folder on the PATH.
    store = tmp_path / "store/neuron" / f"v{release.check_versions(ROOT)}"
    store.mkdir(parents=True)
    unpack(made, store)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/kubectl-neuron").symlink_to(store / "kubectl-neuron")
    path = os.pathsep.join([str(tmp_path / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**PROGRAM_ENVIRONMENT, "PATH": path, "XDG_CACHE_HOME": str(installed)}
    command = [kubectl, "neuron", "convert", "-f", ROOT / "deploy/examples/legacy-pod/pod.yaml"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {each["kind"] for each in yaml.safe_load_all(done.stdout)} == {"Pod", "ResourceClaimTemplate"}


@pytest.mark.skipif("NEURON_DRA_INDEX" not in os.environ, reason="asks a package index: `make release-test` does")
def test_the_plugin_installs_itself_from_an_index(made: Path, tmp_path: Path) -> None:
    unpack(made, tmp_path)
    command = [sys.executable, tmp_path / "kubectl-neuron", "--version"]
    environment = {**PROGRAM_ENVIRONMENT, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, release.check_versions(ROOT) in done.stdout) == (0, True), done.stderr
    assert "installing into" in done.stderr


def test_the_plugin_says_what_it_needs_where_no_index_answers(made: Path, tmp_path: Path) -> None:
    unpack(made, tmp_path)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "PIP_NO_INDEX": "1",
        "PIP_CONFIG_FILE": os.devnull,
    }
    command = [sys.executable, tmp_path / "kubectl-neuron", "--version"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Set pip's index or find-links." in done.stderr
    [home] = (tmp_path / ".cache/kubectl-neuron").iterdir()
    assert not (home / "complete").exists()
    # With the packages of this environment instead of pip's, the next run starts the program with its arguments.
    (home / "complete").touch()
    (home / "bin/python").unlink()
    (home / "bin/python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (home / "bin/python").chmod(0o755)
    environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, release.check_versions(ROOT) in done.stdout) == (0, True), done.stderr


CHANGELOG = """# Changelog

## Unreleased

### Added

- One thing. It has details.
  More of them.

## 1.0.0 - 2026-01-01

### Security

- A bound holds (NEU1).

### Fixed

- A fault is gone. Details.

## 0.9.0 - 2025-01-01

- Old.
"""


def test_the_notes_are_the_section_of_the_version() -> None:
    assert release.section(CHANGELOG, "1.0.0", trial=False).startswith("### Security\n\n- A bound")
    assert "Old" not in release.section(CHANGELOG, "1.0.0", trial=False)
    assert "One thing" in release.section(CHANGELOG, "2.0.0", trial=True)
    with pytest.raises(release.ReleaseError, match=r"no section '## 2\.0\.0 - <date>': move the entries"):
        release.section(CHANGELOG, "2.0.0", trial=False)


def test_artifact_hub_gets_the_first_sentence_of_each_change() -> None:
    annotations = release.hub_annotations(release.section(CHANGELOG, "1.0.0", trial=False))
    assert yaml.safe_load(annotations["artifacthub.io/changes"]) == [
        {"kind": "security", "description": "A bound holds (NEU1)."},
        {"kind": "fixed", "description": "A fault is gone."},
    ]


def test_a_released_chart_says_where_the_project_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOMEPAGE", "https://code.example.com/neuron-dra")
    packed = release.package_chart(tmp_path, {}, release.section(CHANGELOG, "1.0.0", trial=False))
    with tarfile.open(packed) as archive:
        member = archive.extractfile("neuron-dra/Chart.yaml")
        assert member is not None
        about = yaml.safe_load(member.read())
    assert about["home"] == "https://code.example.com/neuron-dra"
    assert about["sources"] == [about["home"]]
    path = about["icon"].removeprefix(f"{about['home']}/raw/v{release.check_versions(ROOT)}/")
    assert (ROOT / path).read_text().startswith("<svg ")
    assert about["maintainers"]
    assert "artifacthub.io/changes" in about["annotations"]


def test_the_notes_name_changed_values() -> None:
    before, after = "a: {b: 1, c: x}\ngone: []\nsame: {}\n", "a: {b: 2, c: x, d: null}\nsame: {}\n"
    assert release.changed_values(before, after) == [
        "other default: `a.b`, `1` -> `2`",
        "new: `a.d`, default `null`",
        "removed: `gone`; `helm upgrade` refuses it",
    ]
    assert release.changed_values(before, before) == []
