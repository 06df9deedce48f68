"""Writes files from and for the chart: `make manifests`.

- `deploy/manifests/*.yaml`: the rendered chart, with its optional parts, for use without Helm.
- `deploy/chart/files/packs/`: copies of the shipped policy files, because a chart cannot read outside its folder.
- `deploy/chart/files/followed.json`: what `followPolicies` may follow.
- `deploy/chart/templates/_kinds.tpl`: rules for the kinds with pods.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click
import helm_python as helm

from commands.cli.report import report
from commands.cli.templates import prune
from deploy import kinds
from kubeletplugin.cli import main as plugin
from neuron.hardware.instances import Catalogue
from neuron.names import SAGEMAKER_PREFIX
from policies.schema.followable import FOLLOWED, SUBRESOURCES
from webhook.server.command import webhook

ROOT: Final = Path(__file__).resolve().parents[1]
CHART: Final = ROOT / "deploy" / "chart"
MANIFESTS: Final = ROOT / "deploy" / "manifests"
PACKS: Final = ROOT / "policies" / "packs"

NAME: Final = "neuron-dra"
NAMESPACE: Final = "neuron-dra"

FILES: Final = {
    "rbac.yaml": (
        "Namespace, ServiceAccounts, permissions, and the policies that limit them.",
        ("webhook/rbac.yaml", "webhook/admission-policy.yaml", "kubelet-plugin/rbac.yaml"),
    ),
    "webhook.yaml": (
        "The webhook. Needs rbac.yaml. Until its Deployment is available, Neuron pods are denied.",
        (
            "webhook/certificates.yaml",
            "webhook/service.yaml",
            "webhook/deployment.yaml",
            "webhook/pdb.yaml",
            "networkpolicies.yaml",
            "webhook/rendered.yaml",
            "webhook/mutating.yaml",
        ),
    ),
    "validating.yaml": (
        "Checks claims, templates, DeviceClasses, pods and workloads. Needs webhook.yaml.",
        ("webhook/validating.yaml",),
    ),
    "kubelet-plugin.yaml": (
        "The DRA driver for nodes with Neuron devices, and its DeviceClass. Needs rbac.yaml.",
        (
            "kubelet-plugin/admission-policy.yaml",
            "admin-access.yaml",
            "kubelet-plugin/daemonset.yaml",
            "deviceclasses.yaml",
        ),
    ),
    "audit.yaml": (
        "Every hour, writes policy reports about existing objects. Needs rbac.yaml and a CRD for such reports.",
        ("webhook/policies.yaml", "audit/cronjob.yaml", "audit/admission-policy.yaml"),
    ),
    "prune.yaml": (
        "Every night, removes generated templates that nothing needs. Needs rbac.yaml.",
        ("prune/cronjob.yaml",),
    ),
    "map.yaml": (
        "The page of `neuron-dra map`, for `kubectl port-forward`. Needs rbac.yaml.",
        ("map/deployment.yaml",),
    ),
}
"""File -> its first line, and its templates."""

VALUES: Final[dict[str, dict[str, Any]]] = {
    "audit.yaml": {
        "audit": {"enabled": True},
        "policies": {"packs": sorted(path.stem for path in PACKS.glob("*.yaml"))},
    },
    "prune.yaml": {"prune": {"enabled": True}},
    "map.yaml": {"map": {"enabled": True}},
}
"""File -> values of the chart that differ from the defaults."""

_NAMESPACE: Final = f"""\
apiVersion: v1
kind: Namespace
metadata:
  name: {NAMESPACE}
  labels:
    app.kubernetes.io/name: neuron-dra
    # The driver's pods mount host directories.
    pod-security.kubernetes.io/enforce: privileged
"""
_HELM_ONLY: Final = re.compile(r"^ *(helm\.sh/chart|app\.kubernetes\.io/managed-by): .*\n", re.MULTILINE)


INSTALL: Final = ("rbac.yaml", "webhook.yaml", "validating.yaml", "kubelet-plugin.yaml")
"""Files of what the chart installs by default."""


def install(values: Mapping[str, Any]) -> str:
    """One file with what the chart installs by default.

    Args:
        values: values of the chart, such as the images' registry and digests.
    """
    about = "# Webhook and DRA driver, rendered from the chart: kubectl apply --server-side -f install.yaml\n"
    made = manifests(values)
    return about + "---\n".join(re.sub(r"\A(#.*\n)+", "", made[file]) for file in INSTALL)


def manifests(values: Mapping[str, Any] | None = None) -> dict[str, str]:
    """File name -> content, for all plain manifests.

    Args:
        values: further values of the chart, for all files.
    """
    made = {}
    with helm.Chart.load(CHART) as chart:
        for file, (about, templates) in FILES.items():
            rendered = chart.render({**(values or {}), **VALUES.get(file, {})}, name=NAME, namespace=NAMESPACE)
            texts = {path.partition("/templates/")[2]: text for path, text in rendered.items()}
            parts = [_NAMESPACE] if file == "rbac.yaml" else []
            parts += [_HELM_ONLY.sub("", texts[template]).strip() + "\n" for template in templates]
            which = "default values, and this part enabled" if file in VALUES else "default values"
            header = f"# {about}\n# Rendered from deploy/chart with its {which}: `make manifests`.\n"
            made[file] = header + "---\n".join(parts)
    return made


def followed() -> str:
    """The text of `files/followed.json`."""
    return json.dumps({"resources": FOLLOWED, "subresources": SUBRESOURCES}, indent=2) + "\n"


_VALUES: Final = {
    **dict.fromkeys(("NUMBER", "BYTES", "PORT"), "[0-9]+"),
    "SECONDS": "[0-9]+([.][0-9]+)?",
    "DURATION": "[1-9][0-9]*[smhd]",
}
"""What the values of flags look like, by their placeholder in `--help`. Others can be any text."""


def flags(command: click.Command) -> list[str]:
    """The long flags of a command, without dashes, as regular expressions with their values."""
    found = []
    for each in command.params:
        value = ""
        if isinstance(each, click.Option) and not each.is_flag:
            choices = each.metavar if each.metavar and each.metavar.startswith("[") else ""
            values = choices.strip("[]").replace(".", "[.]")
            value = f"=({values})$" if values else f"={_VALUES[each.metavar]}$" if each.metavar in _VALUES else "="
        names = (flag for flag in (*each.opts, *each.secondary_opts) if flag.startswith("--"))
        found += [flag.removeprefix("--") + (value or "$") for flag in names]
    return found


def schema() -> str:
    """The text of `values.schema.json`, with the instance types of the catalogue, and the flags of the programs."""
    whole = json.loads((CHART / "values.schema.json").read_text())
    known_flags = {
        "webhook": flags(webhook),
        "kubeletPlugin": flags(plugin),
        "prune": flags(prune),
        "audit": flags(report),
    }
    for part, known in known_flags.items():
        allowed = {"type": "string", "pattern": f"^--({'|'.join(sorted(known))})"}
        whole["properties"][part]["properties"]["extraArgs"]["items"] = allowed
    known = Catalogue()
    names = [entry.name for entry in known]
    limited = whole["then"]["properties"]
    limited["conversion"]["properties"]["families"]["items"]["enum"] = list(known.families())
    driver = limited["kubeletPlugin"]["properties"]
    driver["instanceTypes"]["items"]["enum"] = [*names, *(SAGEMAKER_PREFIX + name for name in names)]
    driver["emulate"]["enum"] = ["", *names]
    return json.dumps(whole, indent=2) + "\n"


def kustomization() -> str:
    """What the chart installs by default, for `kubectl apply -k`."""
    return "".join(
        (
            "# What the chart installs by default: kubectl apply --server-side -k deploy/manifests\n",
            "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n",
            *(f"  - {name}\n" for name in INSTALL),
        )
    )


def main() -> None:
    """Write the manifests and the files of the chart."""
    (CHART / "values.schema.json").write_text(schema())
    (MANIFESTS / "kustomization.yaml").write_text(kustomization())
    (CHART / "files" / "followed.json").write_text(followed())
    kinds.PATH.write_text(kinds.text())
    packs = CHART / "files" / "packs"
    for stale in packs.glob("*.yaml"):
        stale.unlink()
    for pack in PACKS.glob("*.yaml"):
        (packs / pack.name).write_bytes(pack.read_bytes())
    for name, text in manifests().items():
        (MANIFESTS / name).write_text(text)


if __name__ == "__main__":
    main()
