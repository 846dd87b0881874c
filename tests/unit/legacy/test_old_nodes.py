"""Nodes of Kafka 0.7 in ZooKeeper."""

from __future__ import annotations

from typing import Any, cast

import pytest

from kbroker.client.zookeeper.znodes import ZnodeError, Znodes
from kbroker.legacy.old_nodes import (
    GroupOffset,
    Layout,
    address_of,
    layout_of_json,
    read_group_offsets,
    read_layout,
)

pytestmark = pytest.mark.unit


class Nodes:
    """Data by path."""

    def __init__(self, data: dict[str, bytes]) -> None:
        self._data = data

    def children(self, path: str) -> tuple[list[str], Any]:
        names = {each[len(path) + 1 :].split("/")[0] for each in self._data
                 if each.startswith(f"{path}/")}  # fmt: skip
        if not names:
            raise ZnodeError(path)
        return sorted(names), None

    def get(self, path: str) -> tuple[bytes, Any]:
        if path not in self._data:
            raise ZnodeError(path)
        return self._data[path], None


def nodes(data: dict[str, bytes]) -> Znodes:
    return cast(Znodes, Nodes(data))


@pytest.mark.parametrize(("text", "address"), [
    ("10.0.0.1-1310000000000:kafka.example:9092", "kafka.example:9092"),
    ("worker-1310000000000:creator-1310000000001:9092", "creator-1310000000001:9092"),
    ("kafka.example:10.0.0.1-1310000000000:9092", "kafka.example:9092"),
    ("kafka.example:9092", "kafka.example:9092"),
    ("kafka.example:creator:9092", "kafka.example:9092"),
    ("", None), ("9092", None), (":9092", None), ("a:b", None), ("a:b:c:9092", None),
    ('{"host":"x","port":1}', None),
])  # fmt: skip
def test_address_of_a_broker(text, address):
    assert address_of(text) == address


def test_layout_is_read_and_what_is_no_part_of_it_is_left_out():
    found = read_layout(nodes({
        "/brokers/ids/0": b"a-1310000000000:host-a:9092", "/brokers/ids/2": b"\xff",
        "/brokers/topics/orders/0": b"2", "/brokers/topics/orders/2": b"3",
        "/brokers/topics/orders/x": b"3", "/brokers/topics/huge/0": b"9" * 30,
        "/brokers/topics/new/partitions/0": b"{}",
    }))  # fmt: skip

    assert found == Layout({0: "host-a:9092"}, {"orders": {0: 2, 2: 3}})
    assert layout_of_json(found.to_json()) == found
    assert read_layout(nodes({})) == Layout({}, {})


def test_partitions_are_numbered_by_broker_and_partition():
    layout = Layout({}, {"orders": {10: 2, 2: 3}}).with_found(
        [("orders", 2, 4), ("orders", 5, 0), ("other", 1, 1)]
    )

    assert layout.topics == {"orders": {2: 5, 5: 1, 10: 2}, "other": {1: 2}}
    assert [layout.number("orders", *key) for key in ((2, 0), (2, 4), (5, 0), (10, 1))] == [
        0, 4, 5, 7,
    ]  # fmt: skip
    assert (layout.count("orders"), layout.count("nothing")) == (8, 0)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"brokers":{},"topics":{"t":{"0":-1}}}', '{"brokers":{},"topics":{"t":[]}}'],
)
def test_damaged_layout_is_rejected(text):
    with pytest.raises(ValueError, match=r"layout|number of partitions"):
        layout_of_json(text)


def test_offsets_of_groups_are_read():
    found = read_group_offsets(nodes({
        "/consumers/g/offsets/orders/0-1": b"1234", "/consumers/g/offsets/orders/1": b"5",
        "/consumers/g/offsets/orders/0-2": b"-5", "/consumers/g/ids/x": b"{}",
        "/consumers/h/owners/orders/0-1": b"x",
    }))  # fmt: skip

    assert found == [GroupOffset("g", "orders", 0, 1, 1234)]
