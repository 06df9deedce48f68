"""Helm's own engine against the test's control plane."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import helm_python as helm

from tests.cluster.controlplane import ControlPlane

CHART: Final = Path(__file__).resolve().parents[2] / "deploy" / "chart"
RELEASE: Final = "neuron-dra"


class Helm:
    """The helm command of an admin, in one namespace."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.namespace = namespace
        self._config = helm.Config(kubeconfig_path=plane.admin_kubeconfig, namespace=namespace)

    def close(self) -> None:
        """Release the engine."""
        self._config.close()

    def install(self, values: dict[str, Any], release: str = RELEASE, chart: Path = CHART) -> None:
        """`helm install`."""
        self._config.install(chart, release, values, namespace=self.namespace, timeout=60)

    def upgrade(self, values: dict[str, Any], release: str = RELEASE, chart: Path = CHART) -> None:
        """`helm upgrade --reset-then-reuse-values`, as the notes say, with further values."""
        known = self._config.get_values(release) or {}
        self._config.upgrade(chart, release, merged(known, values), namespace=self.namespace, timeout=60)

    def rollback(self, release: str = RELEASE) -> None:
        """`helm rollback` to the revision before."""
        self._config.rollback(release, timeout=60)

    def test(self, timeout: int, release: str = RELEASE) -> None:
        """`helm test`."""
        self._config.test(release, timeout=timeout)

    def uninstall(self, release: str = RELEASE) -> None:
        """`helm uninstall`; a release that is not there is fine."""
        self._config.uninstall(release, ignore_not_found=True, timeout=60)

    @contextlib.contextmanager
    def installed(self, values: dict[str, Any], release: str = RELEASE, chart: Path = CHART) -> Iterator[None]:
        """A release, for a while."""
        try:
            self.install(values, release, chart)
            yield
        finally:
            self.uninstall(release)


def merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Values over values, as Helm lays them."""
    together = dict(below)
    for key, value in above.items():
        known = together.get(key)
        together[key] = merged(known, value) if isinstance(known, dict) and isinstance(value, dict) else value
    return together
