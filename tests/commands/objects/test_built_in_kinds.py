import pytest

from commands.objects.manifests import missing_kind
from conversion.objects.kinds import KINDS


@pytest.mark.parametrize(
    ("version", "kind", "meant"),
    [
        ("apps/v1", "Deploymnet", "kind: Deployment?"),
        ("apps/v1beta1", "Deployement", "kind: Deployment?"),
        ("apps/v1", "StatefullSet", "kind: StatefulSet?"),
        ("v1", "pod", "kind: Pod?"),
        ("v1", "Pods", "kind: Pod?"),
        ("batch/v1", "Cronjob", "kind: CronJob?"),
        ("v1", "Deployment", "apiVersion: apps/v1?"),
        ("apps/v1", "Job", "apiVersion: batch/v1?"),
        ("autoscaling/v1", "VerticalPodAutoscaler", "apiVersion: autoscaling.k8s.io/v1?"),
        ("apps/v1", "cronjob", "kind: CronJob of apiVersion: batch/v1?"),
        ("app/v1", "Deployment", "apiVersion: apps/v1?"),
        ("resource.k8s.io/v1", "ResourceClaimTemplat", "kind: ResourceClaimTemplate?"),
    ],
)
def test_a_kind_that_does_not_exist_is_an_error_with_a_suggestion(version: str, kind: str, meant: str) -> None:
    (finding,) = missing_kind(version, kind)
    assert finding.code == "NEU718"
    assert finding.message.endswith(f"Did you mean {meant}")


@pytest.mark.parametrize(
    ("version", "kind"),
    [
        *((f"{group}/v1" if group else "v1", kind) for group, kind in KINDS if group != "extensions"),
        *(
            ("v1", kind)
            for kind in ("List", "PodList", "Config", "Template", "ServiceMonitor", "Quux", "", "x" * 10_000)
        ),
        ("example.com/v1", "Deploymnet"),
        ("skaffold/v4beta6", "Config"),
        ("v2", "pod"),
        ("", "pod"),
        ("apps/v2", "Rolloutish"),
    ],
)
def test_what_may_exist_is_not_judged(version: str, kind: str) -> None:
    assert [*missing_kind(version, kind)] == []
