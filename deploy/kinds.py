"""The chart's rules for workloads, from the table of kinds. `make manifests` writes them.

So the kinds that the API server sends at apply time are those that all commands check.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from conversion.objects.kinds import KINDS, Kind

PATH: Final = Path(__file__).parent / "chart" / "templates" / "_kinds.tpl"

_STABLE: Final = ("", "apps", "batch")
"""Groups of Kubernetes; of others, every version is sent."""


def text() -> str:
    """The file."""
    return f"""{{{{/*
Written by deploy/kinds.py from conversion/objects/kinds.py. Do not edit.
*/}}}}

{{{{/* Rules of the workloads whose pods are checked when the workload is applied. */}}}}
{{{{- define "neuron-dra.workloadRules" -}}}}
{chr(10).join(_rules())}
{{{{- end }}}}

{{{{/* Their resources, separated by commas. */}}}}
{{{{- define "neuron-dra.workloadResources" -}}}}
{",".join(dict.fromkeys(each.plural for each in _sent()))}
{{{{- end }}}}
"""


def _sent() -> list[Kind]:
    return [each for each in KINDS.values() if each.kind != "Pod"]


def _rules() -> Iterator[str]:
    groups = dict.fromkeys(each.group for each in _sent())
    for group in groups:
        kinds = [each for each in _sent() if each.group == group]
        yield f"- apiGroups: [{json.dumps(group)}]"
        yield f"  apiVersions: [{'v1' if group in _STABLE else json.dumps('*')}]"
        yield "  operations: [CREATE, UPDATE]"
        yield f"  resources: [{', '.join(dict.fromkeys(each.plural for each in kinds))}]"
        if all(each.namespaced for each in kinds):
            yield "  scope: Namespaced"
