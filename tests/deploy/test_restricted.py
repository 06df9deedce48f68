"""Restricted clusters: OpenShift, SELinux, IPv6, and nodes with other directories."""

import pytest

from tests.deploy.charts import EVERYTHING, Object, find, flags, pod_specs, render

DRIVER = "neuron-dra-kubelet-plugin"
IDS = {"runAsUser", "runAsGroup", "fsGroup"}


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["default", "everything"])
def test_openshift_chooses_the_users_of_all_pods_but_the_drivers(values: Object) -> None:
    for name, spec in pod_specs(render({**values, "openshift": {"enabled": True}})).items():
        pod = spec["securityContext"]
        if name != f"DaemonSet/{DRIVER}":
            assert not IDS & set(pod)
            assert pod["runAsNonRoot"] is True
            # restricted-v2 has no hostPath.
            assert not [each for each in spec.get("volumes", ()) if "hostPath" in each]
    for name, spec in pod_specs(render(values)).items():
        assert name == f"DaemonSet/{DRIVER}" or set(spec["securityContext"]) >= IDS


def test_the_constraints_are_what_the_drivers_pods_use() -> None:
    objects = render({**EVERYTHING, "openshift": {"enabled": True}})
    constraints = find(objects, "SecurityContextConstraints", DRIVER)
    spec = find(objects, "DaemonSet", DRIVER)["spec"]["template"]["spec"]
    [container] = spec["containers"]
    assert constraints["users"] == [f"system:serviceaccount:neuron-dra:{spec['serviceAccountName']}"]
    kinds = {next(key for key in each if key != "name") for each in spec["volumes"]} | {"projected"}
    assert kinds <= set(constraints["volumes"])
    security = container["securityContext"]
    assert security["capabilities"]["add"] == constraints["allowedCapabilities"]
    assert security["capabilities"]["drop"] == constraints["requiredDropCapabilities"]
    assert security["readOnlyRootFilesystem"] is constraints["readOnlyRootFilesystem"]
    assert security["seLinuxOptions"] == {"type": "spc_t"}
    assert [key for key, allowed in constraints.items() if key.startswith("allow") and allowed is True] == [
        "allowHostDirVolumePlugin"
    ]


def test_constraints_are_only_as_wide_as_the_values() -> None:
    openshift = {"openshift": {"enabled": True}}
    narrow = render({**openshift, "kubeletPlugin": {"processScan": False, "seLinuxOptions": {"type": "other_t"}}})
    assert find(narrow, "SecurityContextConstraints", DRIVER)["allowedCapabilities"] == []
    [container] = find(narrow, "DaemonSet", DRIVER)["spec"]["template"]["spec"]["containers"]
    assert container["securityContext"]["seLinuxOptions"] == {"type": "other_t"}
    for values in ({}, {**openshift, "kubeletPlugin": {"enabled": False}}):
        assert "SecurityContextConstraints" not in {each["kind"] for each in render(values)}


def test_the_service_has_the_ip_families_of_the_values() -> None:
    assert not {"ipFamilyPolicy", "ipFamilies"} & set(find(render(), "Service")["spec"])
    service = {"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv6", "IPv4"]}
    assert find(render({"webhook": {"service": service}}), "Service")["spec"].items() >= service.items()


def test_the_driver_can_listen_on_ipv6() -> None:
    name = f"DaemonSet/{DRIVER}"
    assert "--bind-address" not in flags(pod_specs(render())[name])
    assert flags(pod_specs(render({"kubeletPlugin": {"bindAddress": "::"}}))[name])["--bind-address"] == ["::"]
