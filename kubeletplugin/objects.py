"""Fields that all Kubernetes objects have in one form: versions and times."""

import datetime as dt

from kubeletplugin.ports import JsonObject


def version_of(body: JsonObject) -> int:
    """The object's resourceVersion; 0 if it has none.

    Comparable for objects of one kind: specified since Kubernetes 1.35 (KEP-5504), true also before.
    """
    text = body["metadata"].get("resourceVersion", "")
    return int(text) if text.isdecimal() else 0


def timestamp(now: float) -> str:
    """Seconds since the epoch as `metav1.Time`."""
    return dt.datetime.fromtimestamp(now, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
