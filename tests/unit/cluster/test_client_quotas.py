"""Which quota applies to a client, and the names of the entities."""

from __future__ import annotations

from itertools import combinations

import pytest

from kbroker.cluster.client_quotas import AppliedQuota, ClientQuotas, address_rates
from kbroker.metastore.entities import (
    Entity,
    entity,
    is_entity,
    parents_of,
    parse_entity,
)

pytestmark = pytest.mark.unit

KEY = "producer_byte_rate"
BOTH, OF_USER, OF_CLIENT = ("u", "c"), ("u", ""), ("", "c")
# Kafka's order (DefaultQuotaCallback), and who shares each quota.
ORDER = [
    ("users/u/clients/c", BOTH),
    ("users/u/clients/<default>", BOTH),
    ("users/u", OF_USER),
    ("users/<default>/clients/c", BOTH),
    ("users/<default>/clients/<default>", BOTH),
    ("users/<default>", OF_USER),
    ("clients/c", OF_CLIENT),
    ("clients/<default>", OF_CLIENT),
]


def test_most_specific_quota_applies() -> None:
    bounds = {path: {KEY: float(number + 1)} for number, (path, _) in enumerate(ORDER)}
    for first in range(len(ORDER)):
        present = {path: bounds[path] for path, _ in ORDER[first:]}
        path, shared_by = ORDER[first]
        expected = AppliedQuota(bounds[path][KEY], shared_by)
        assert ClientQuotas(present).find(KEY, "u", "c") == expected


def test_order_holds_for_every_pair() -> None:
    for (strong, shared_by), (weak, _) in combinations(ORDER, 2):
        quotas = ClientQuotas({weak: {KEY: 1.0}, strong: {KEY: 2.0}})
        assert quotas.find(KEY, "u", "c") == AppliedQuota(2.0, shared_by)


def test_quotas_of_others_do_not_apply() -> None:
    quotas = ClientQuotas(
        {
            "users/v": {KEY: 1.0},
            "clients/d": {KEY: 1.0},
            "users/u/clients/d": {KEY: 1.0},
            "users/u": {"consumer_byte_rate": 1.0},
            "ips/192.0.2.1": {"connection_creation_rate": 1.0},
        }
    )
    assert quotas.find(KEY, "u", "c") is None
    assert quotas.find("request_percentage", "u", "c") is None
    assert quotas.find("consumer_byte_rate", "u", "c") == AppliedQuota(1.0, OF_USER)


def test_each_key_has_its_own_order() -> None:
    quotas = ClientQuotas({"users/u": {KEY: 1.0}, "clients/c": {KEY: 2.0, "x": 3.0}})
    assert quotas.find(KEY, "u", "c") == AppliedQuota(1.0, OF_USER)
    assert quotas.find("x", "u", "c") == AppliedQuota(3.0, OF_CLIENT)


def test_default_of_the_broker_is_the_weakest() -> None:
    quotas = ClientQuotas({"clients/d": {KEY: 2.0}}, {KEY: 9.0})
    assert quotas.find(KEY, "u", "c") == AppliedQuota(9.0, OF_CLIENT)
    quotas = ClientQuotas({"clients/<default>": {KEY: 2.0}}, {KEY: 9.0})
    assert quotas.find(KEY, "u", "c") == AppliedQuota(2.0, OF_CLIENT)


def test_without_a_quota_nothing_is_on() -> None:
    assert not ClientQuotas({})
    assert not ClientQuotas({"ips/192.0.2.1": {"connection_creation_rate": 1.0}})
    assert ClientQuotas({"users/u": {KEY: 1.0}})


def test_clients_without_an_id_share_the_default_of_client_ids() -> None:
    assert ClientQuotas({"clients/<default>": {KEY: 2.0}}).find(KEY, "u", "") == (2.0, ("", ""))


def test_rates_of_addresses() -> None:
    rates = address_rates(
        {
            "ips/192.0.2.1": {"connection_creation_rate": 5.0},
            "ips/2001%3Adb8%3A%3A1": {"connection_creation_rate": 6.0},
            "ips/<default>": {"connection_creation_rate": 7.0},
            "users/u": {KEY: 1.0},
        },
        "connection_creation_rate",
    )
    assert rates == {"192.0.2.1": 5.0, "2001:db8::1": 6.0, None: 7.0}


@pytest.mark.parametrize(
    ("one", "path"),
    [
        (entity(user="alice"), "users/alice"),
        (entity(user=None), "users/<default>"),
        (entity(client_id="c"), "clients/c"),
        (entity(client_id=None), "clients/<default>"),
        (entity(user="a", client_id="c"), "users/a/clients/c"),
        (entity(user=None, client_id=None), "users/<default>/clients/<default>"),
        (entity(ip="192.0.2.1"), "ips/192.0.2.1"),
        (entity(ip=None), "ips/<default>"),
        # As Kafka's Sanitizer writes them.
        (entity(user="CN=a b,O=x/y*z~+"), "users/CN%3Da%20b%2CO%3Dx%2Fy%2Az%7E%2B"),
        (entity(user="<default>"), "users/%3Cdefault%3E"),
        (entity(client_id="é"), "clients/%C3%A9"),
        (entity(user="a.b-c_d"), "users/a.b-c_d"),
    ],
)
def test_entity_and_its_path(one: Entity, path: str) -> None:
    assert one.path == path
    assert parse_entity(path) == one
    assert is_entity(path)


@pytest.mark.parametrize(
    "path", ["users", "users/", "users/a/clients", "users/a/b/c", "topics/t", "ips/a/clients/b"]
)
def test_path_that_is_no_entity(path: str) -> None:
    assert not is_entity(path)
    with pytest.raises(ValueError, match="neither a user"):
        parse_entity(path)


def test_parents_come_topmost_first() -> None:
    assert parents_of("users/a/clients/c") == [
        "/config/users",
        "/config/users/a",
        "/config/users/a/clients",
    ]
    assert parents_of("ips/192.0.2.1") == ["/config/ips"]
