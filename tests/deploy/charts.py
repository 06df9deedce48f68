"""The chart, rendered by Helm's own engine."""

import functools
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import helm_python as helm
import yaml

ROOT: Final = Path(__file__).resolve().parents[2]
CHART: Final = ROOT / "deploy" / "chart"
NAMESPACE: Final = "neuron-dra"

Object = dict[str, Any]

EVERYTHING: Final[Object] = {
    "certificates": {"mode": "cert-manager"},
    "policies": {
        "packs": ["device-limit", "privileged"],
        "files": {"own.yaml": "kind: ValidatingPolicy\n"},
        "existingConfigMap": "more-policies",
        "reload": "together",
    },
    "webhook": {
        "autoscaling": {"enabled": True},
        "maxInflight": 200,
        "clientCA": {"secretName": "api-server-ca", "names": ["kube-apiserver", "front-proxy"]},
        "nodeSelector": {"role": "system"},
        "podAnnotations": {"team": "ml"},
        "extraArgs": ["--hint-affinity"],
    },
    "validation": {
        "extraRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["services"]}],
        "followPolicies": True,
        "matchConditions": [{"name": "not-system", "expression": "request.userInfo.username != 'root'"}],
    },
    "deviceClasses": {
        "default": {"extendedResourceName": "aws.amazon.com/neuron"},
        "extra": {"trn2.example.com": {"selectors": [{"cel": {"expression": "device.driver == 'neuron.aws.com'"}}]}},
    },
    "monitoring": {
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "prometheusRule": {"enabled": True},
        "dashboard": {"enabled": True},
    },
    "prune": {"enabled": True},
    "audit": {"enabled": True, "readKueue": True},
    "tracing": {
        "endpoint": "https://collector.observability:4318",
        "sampleRatio": 0.1,
        "headers": {"secretName": "collector-token"},
        "ca": {"secretName": "collector-ca"},
        "env": {"OTEL_BSP_MAX_QUEUE_SIZE": "4096", "OTEL_RESOURCE_ATTRIBUTES": "cluster=one"},
    },
    "map": {"enabled": True, "nodeSelector": {"role": "system"}, "tolerations": [{"operator": "Exists"}]},
    "networkPolicy": {"metricsFrom": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]},
}
"""Values that enable everything that is off by default."""

AUDIT: Object = {"audit": {"enabled": True}, "policies": {"packs": ["device-limit"]}}


def render_texts(values: Mapping[str, Any] | None = None, namespace: str = NAMESPACE) -> dict[str, str]:
    """Rendered text by template path below `templates/`."""
    with helm.Chart.load(CHART) as chart:
        rendered = chart.render(dict(values or {}), name="anything", namespace=namespace)
    return {path.partition("/templates/")[2]: text for path, text in rendered.items()}


def render(values: Mapping[str, Any] | None = None, namespace: str = NAMESPACE) -> list[Object]:
    """All rendered objects, including test hooks."""
    texts = render_texts(values, namespace)
    return [
        document
        for path, text in sorted(texts.items())
        if path.endswith(".yaml")
        for document in pickle.loads(_documents(text))  # noqa: S301 - made below
    ]


@functools.lru_cache(1024)
def _documents(text: str) -> bytes:
    """The YAML documents of a text, pickled: most templates are the same in each rendering, and callers may write."""
    return pickle.dumps([document for document in yaml.load_all(text, yaml.CSafeLoader) if document])


def find(objects: list[Object], kind: str, name: str = "neuron-dra") -> Object:
    """The object of that kind and name."""
    [found] = [each for each in objects if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def pod_specs(objects: list[Object]) -> dict[str, Object]:
    """Pod specs by kind and name of their workload."""
    specs = {}
    for each in objects:
        name = f"{each['kind']}/{each['metadata']['name']}"
        match each["kind"]:
            case "Deployment" | "DaemonSet":
                specs[name] = each["spec"]["template"]["spec"]
            case "CronJob":
                specs[name] = each["spec"]["jobTemplate"]["spec"]["template"]["spec"]
            case "Pod":
                specs[name] = each["spec"]
    return specs


def flags(spec: Object) -> dict[str, list[str]]:
    """Flags of the only container, with all values of each."""
    found: dict[str, list[str]] = {}
    for argument in spec["containers"][0].get("args", ()):
        flag, _, value = argument.partition("=")
        found.setdefault(flag, []).append(value)
    return found
