"""Group ids are the published ones, for every family and group."""

import pytest

from neuron.hardware.device_groups import group_attributes, group_id, nearest_efa

PUBLISHED = {
    "trn1.32xlarge": (
        "88a3c6ad1661fe1d 69b2225fd72a59dd e3c29faa0cd11323 178a9e264a26793e",
        "86c451036f622685 aa86c05423d6e8cd",
        "fb838249c99a6341",
    ),
    "trn1n.32xlarge": (
        "f9415ac86580cd2a 81d377c56bbb18dd e367b751fc858d72 6b9b077320083e11",
        "25ab6fa8d56db17d feac12f490fb3cba",
        "9ea13cbe1ff23763",
    ),
    "trn2.48xlarge": (
        "13713e551cd37c19 671622785349fddf 237e3ef7b968b4d3 b3d6ce1919d29f8f",
        "3593812b8066a078 614e16dab9ba2f1f",
        "821d14afaf11327d",
    ),
    "trn3.48xlarge": (
        "68ac040ea32655a7 1c060eef5f3a4fe1 68e7529909eadc38 11626cfcde6dcac3",
        "bafc439bf9664feb 629b2570d9887aaf",
        "31980acd145f7025",
    ),
    "trn3-dev0.48xlarge": (
        "68ac040ea32655a7 11626cfcde6dcac3 1c060eef5f3a4fe1 68e7529909eadc38",
        "e24e6d445a226240 a6e1fae95cf7af58",
        "31980acd145f7025",
    ),
}
SAME_AS = {
    "trn2u.48xlarge": "trn2.48xlarge",
    "trn2e.48xlarge": "trn2.48xlarge",
    "trn3p.48xlarge": "trn3.48xlarge",
    "trn3pd98.48xlarge": "trn3.48xlarge",
    "trn3s.48xlarge": "trn3.48xlarge",
    "trn3-dev1.48xlarge": "trn3-dev0.48xlarge",
}


@pytest.mark.parametrize("instance_type", [*PUBLISHED, *SAME_AS])
def test_group_ids_are_the_published_ones(instance_type: str) -> None:
    published = PUBLISHED[SAME_AS.get(instance_type, instance_type)]
    for size, ids in zip((4, 8, 16), published, strict=True):
        computed = [group_id(instance_type, device, size) for device in range(16)]
        assert computed == [value for value in ids.split() for _ in range(size)]


def test_two_devices_of_trn1_share_an_efa_interface_and_those_of_trn2_do_not() -> None:
    for instance_type, interfaces in (("trn1.32xlarge", 8), ("trn1n.32xlarge", 16), ("trn2.48xlarge", 16)):
        assert len({nearest_efa(instance_type, device) for device in range(16)}) == interfaces


def test_attributes_have_qualified_names() -> None:
    assert group_attributes("trn2.48xlarge", 5) == {
        "resource.aws.com/devicegroup1_id": "0000:57:00.0",
        "resource.aws.com/devicegroup4_id": "671622785349fddf",
        "resource.aws.com/devicegroup8_id": "3593812b8066a078",
        "resource.aws.com/devicegroup16_id": "821d14afaf11327d",
    }


@pytest.mark.parametrize(
    ("instance_type", "device"),
    [("trn2.3xlarge", 0), ("trn1.2xlarge", 0), ("inf2.48xlarge", 0), ("trn2.48xlarge", 16), ("trn2.48xlarge", -1)],
)
def test_there_are_no_groups_where_aws_publishes_no_map(instance_type: str, device: int) -> None:
    assert group_attributes(instance_type, device) == {}
    assert group_id(instance_type, device, 4) is None
