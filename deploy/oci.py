"""Repositories of a registry as folders (OCI image layout), with what `make release` puts into them.

`push.sh` copies such folders to a registry. Sources: the OCI image specification 1.1, Helm's media types (HIP 6),
Artifact Hub's repository metadata, and the formats that cosign 2 verifies.
"""

import base64
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

Descriptor = dict[str, Any]
"""`mediaType`, `digest` and `size` of a blob; sometimes `annotations`."""

MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
INDEX: Final = "application/vnd.oci.image.index.v1+json"
CHART_CONFIG: Final = "application/vnd.cncf.helm.config.v1+json"
CHART_CONTENT: Final = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
HUB_CONFIG: Final = "application/vnd.cncf.artifacthub.config.v1+yaml"
HUB_METADATA: Final = "application/vnd.cncf.artifacthub.repository-metadata.layer.v1.yaml"
HUB_TAG: Final = "artifacthub.io"
SIMPLE_SIGNING: Final = "application/vnd.dev.cosign.simplesigning.v1+json"
ENVELOPE: Final = "application/vnd.dsse.envelope.v1+json"
SIGNATURE: Final = "dev.cosignproject.cosign/signature"

_CONFIG: Final = "application/vnd.oci.image.config.v1+json"
_NAME: Final = "org.opencontainers.image.ref.name"


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


class Layout:
    """One repository."""

    def __init__(self, folder: Path) -> None:
        """Open a folder; one without a layout gets an empty one."""
        self.folder = folder
        self._index = folder / "index.json"
        if not self._index.exists():
            (folder / "blobs" / "sha256").mkdir(parents=True)
            (folder / "oci-layout").write_text(_json({"imageLayoutVersion": "1.0.0"}).decode())
            self._index.write_bytes(_json({"schemaVersion": 2, "mediaType": INDEX, "manifests": []}))

    @property
    def tags(self) -> dict[str, Descriptor]:
        """Tag -> descriptor of its manifest."""
        listed = json.loads(self._index.read_bytes())["manifests"]
        return {each["annotations"][_NAME]: each for each in listed if _NAME in each.get("annotations", {})}

    def read(self, digest: str) -> bytes:
        return self._path(digest).read_bytes()

    def add(self, media_type: str, content: bytes, annotations: Mapping[str, str] | None = None) -> Descriptor:
        """Add a blob."""
        digest = digest_of(content)
        self._path(digest).write_bytes(content)
        described: Descriptor = {"mediaType": media_type, "digest": digest, "size": len(content)}
        return described | ({"annotations": dict(annotations)} if annotations else {})

    def add_manifest(
        self,
        tag: str,
        config: Descriptor,
        layers: Sequence[Descriptor],
        annotations: Mapping[str, str] | None = None,
    ) -> Descriptor:
        """Add a manifest of blobs that were added, with a tag."""
        content = {"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": list(layers)}
        described = self.add(MANIFEST, _json(content | ({"annotations": dict(annotations)} if annotations else {})))
        index = json.loads(self._index.read_bytes())
        index["manifests"].append(described | {"annotations": {_NAME: tag}})
        self._index.write_bytes(_json(index))
        return described

    def _path(self, digest: str) -> Path:
        return self.folder / "blobs" / digest.replace(":", "/")


def add_chart(layout: Layout, archive: bytes, about: Mapping[str, Any], created: str) -> Descriptor:
    """Add a chart as `helm push` does.

    Args:
        layout: the chart's repository; its last element is the chart's name.
        archive: the chart's `.tgz`.
        about: Chart.yaml.
        created: RFC 3339.
    """
    prefix = "org.opencontainers.image."
    return layout.add_manifest(
        about["version"].replace("+", "_"),
        layout.add(CHART_CONFIG, _json(about)),
        [layout.add(CHART_CONTENT, archive)],
        {
            f"{prefix}created": created,
            f"{prefix}description": about["description"],
            f"{prefix}title": about["name"],
            f"{prefix}version": about["version"],
        },
    )


def add_hub_metadata(layout: Layout, text: str) -> Descriptor:
    """Add `artifacthub-repo.yml`, with the tag under which Artifact Hub looks for it."""
    title = {"org.opencontainers.image.title": "artifacthub-repo.yml"}
    return layout.add_manifest(
        HUB_TAG, layout.add(HUB_CONFIG, b""), [layout.add(HUB_METADATA, text.encode(), title)], title
    )


def add_signature(layout: Layout, digest: str, sign: Callable[[bytes], bytes], reference: str) -> Descriptor:
    """Add a signature of a manifest, with the tag under which cosign looks for it.

    Args:
        reference: repository of the manifest, with its registry. Policies of containers/image (podman, CRI-O, skopeo)
            compare it with the place from which they pull; cosign does not.
    """
    payload = _json(
        {
            "critical": {
                "identity": {"docker-reference": reference},
                "image": {"docker-manifest-digest": digest},
                "type": "cosign container image signature",
            },
            "optional": None,
        }
    )
    signature = base64.b64encode(sign(payload)).decode()
    return _attach(layout, digest, "sig", layout.add(SIMPLE_SIGNING, payload, {SIGNATURE: signature}))


def add_attestation(layout: Layout, digest: str, envelope: Mapping[str, Any], predicate_type: str) -> Descriptor:
    """Add a DSSE envelope with a statement about a manifest, with the tag under which cosign looks for it."""
    layer = layout.add(ENVELOPE, _json(envelope), {SIGNATURE: "", "predicateType": predicate_type})
    return _attach(layout, digest, "att", layer)


def _attach(layout: Layout, digest: str, kind: str, layer: Descriptor) -> Descriptor:
    config = {
        "architecture": "",
        "config": {},
        "created": "0001-01-01T00:00:00Z",
        "history": [{"created": "0001-01-01T00:00:00Z"}],
        "os": "",
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
    }
    return layout.add_manifest(f"{digest.replace(':', '-')}.{kind}", layout.add(_CONFIG, _json(config)), [layer])


def _json(content: object) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
