"""Kubelets with a known fault are told from those without, whatever a distribution adds to the version."""

import pytest

from neuron.kubelets import fault


@pytest.mark.parametrize("version", ["v1.34.0", "v1.34.1", "1.34.1", "v1.34.1-eks-113cf36", "v1.34.0+k3s1"])
def test_the_regression_of_1_34_is_known(version: str) -> None:
    found = fault(version)
    assert found is not None
    assert (found.issue, found.fixed_in) == ("kubernetes/kubernetes#133920", "1.34.2")


@pytest.mark.parametrize("version", ["v1.33.9", "v1.34.2", "v1.34.10", "v1.34.2-eks-1", "v1.35.0", "v2.34.1"])
def test_other_versions_have_none(version: str) -> None:
    assert fault(version) is None


@pytest.mark.parametrize("version", ["", "v1.34", "latest", "v1.34.x", "v1.34.99999", "x1.34.1"])
def test_a_version_that_cannot_be_parsed_has_none(version: str) -> None:
    assert fault(version) is None
