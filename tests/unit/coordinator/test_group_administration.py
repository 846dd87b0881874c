"""DescribeGroups, ListGroups and DeleteGroups."""

from __future__ import annotations

from typing import Any

import pytest
from support.clients.group_clients import Client, OtherGroup, classic_host, form_group
from support.coordinators.coordinator_host import CoordinatorHost, value_of

from kbroker.coordinator.records.offsets_topic import GroupMetadataKey
from kbroker.errors import ErrorCode
from kbroker.protocol.messages.delete_groups import DeleteGroupsRequest
from kbroker.protocol.messages.describe_groups import DescribeGroupsRequest
from kbroker.protocol.messages.list_groups import ListGroupsRequest

pytestmark = pytest.mark.unit

ALL_OPERATIONS = (1 << 3) + (1 << 6) + (1 << 8) + (1 << 10) + (1 << 11)


def host_with_groups() -> CoordinatorHost:
    """g is stable, empty has lost its member, simple has only commits, new is of KIP-848."""
    host = classic_host()
    form_group(host, Client(host, "a", instance_id="i"))
    (gone,) = form_group(host, Client(host, "b", group_id="empty", protocol_type="connect"))
    gone.leave()
    host.machine.groups["new"] = OtherGroup("new")
    host.machine.offsets.groups |= {"simple", "g"}
    return host


def describe(host: CoordinatorHost, *groups: str, version: int = 6, **fields: Any) -> list[Any]:
    found: list[Any] = host.ask(
        DescribeGroupsRequest(groups=list(groups), **fields), version
    ).groups
    return found


def listed(host: CoordinatorHost, version: int = 5, **filters: list[str]) -> set[str]:
    return {g.group_id for g in host.ask(ListGroupsRequest(**filters), version).groups}


def delete(host: CoordinatorHost, *groups: str, version: int = 2) -> list[tuple[str, int]]:
    response = host.ask(DeleteGroupsRequest(groups_names=list(groups)), version)
    return [(r.group_id, r.error_code) for r in response.results]


# -- DescribeGroups ------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(7))
def test_describe_of_a_stable_group_shows_its_members(version: int) -> None:
    host = classic_host()
    (client,) = form_group(host, Client(host, "app", instance_id="i"))

    (found,) = describe(host, "g", version=version)

    assert (found.error_code, found.group_state) == (0, "Stable")
    assert (found.protocol_type, found.protocol_data) == ("consumer", "range")
    (member,) = found.members
    assert member.member_id == client.member_id
    assert member.group_instance_id == ("i" if version >= 4 else None)
    assert (member.client_id, member.client_host) == ("app", "/127.0.0.1")
    assert member.member_metadata == client.protocols["range"]
    assert member.member_assignment == client.member_id.encode()
    assert found.authorized_operations == -(2**31)


def test_describe_during_a_rebalance_shows_no_subscriptions() -> None:
    host = classic_host()
    form_group(host, Client(host))
    Client(host, "second", version=3).send_join()

    (found,) = describe(host, "g")

    assert found.group_state == "PreparingRebalance" and found.protocol_data == ""
    assert len(found.members) == 2
    assert {m.member_metadata for m in found.members} == {b""}


@pytest.mark.parametrize("version", range(6))
def test_describe_of_an_unknown_group_says_dead(version: int) -> None:
    (found,) = describe(classic_host(), "none", version=version)

    assert (found.error_code, found.group_state, found.members) == (0, "Dead", [])


def test_describe_of_an_unknown_group_in_version_6_is_an_error() -> None:
    unknown, other = describe(host_with_groups(), "none", "new", include_authorized_operations=True)

    assert unknown.error_code == other.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert unknown.error_message == "Group none not found."
    assert other.error_message == "Group new is not a classic group."
    assert unknown.group_state == other.group_state == "Dead"
    assert unknown.authorized_operations == -(2**31)


def test_describe_of_a_group_that_only_committed_says_empty() -> None:
    (found,) = describe(host_with_groups(), "simple", include_authorized_operations=True)

    assert (found.error_code, found.group_state, found.protocol_type) == (0, "Empty", "")
    assert found.authorized_operations == ALL_OPERATIONS


# -- ListGroups ----------------------------------------------------------------------------------


def test_list_shows_groups_of_every_kind() -> None:
    found = host_with_groups().ask(ListGroupsRequest(), 5).groups

    assert {(g.group_id, g.group_type, g.group_state, g.protocol_type) for g in found} == {
        ("g", "classic", "Stable", "consumer"),
        ("empty", "classic", "Empty", "connect"),
        ("simple", "classic", "Empty", ""),
        ("new", "consumer", "Reconciling", "consumer"),
    }


@pytest.mark.parametrize("version", range(4))
def test_list_of_old_clients_has_no_states(version: int) -> None:
    assert listed(host_with_groups(), version) == {"g", "empty", "simple", "new"}


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({"states_filter": ["Stable"]}, {"g"}),
        ({"states_filter": [" sTABLE ", "empty"]}, {"g", "empty", "simple"}),
        ({"states_filter": ["nonsense"]}, set()),
        ({"types_filter": ["CLASSIC"]}, {"g", "empty", "simple"}),
        ({"types_filter": ["consumer"]}, {"new"}),
        ({"types_filter": ["share"]}, set()),
        ({"types_filter": ["classic", "consumer"], "states_filter": ["reconciling"]}, {"new"}),
    ],
)
def test_list_filters_without_regard_to_case(filters: Any, found: set[str]) -> None:
    assert listed(host_with_groups(), **filters) == found


# -- DeleteGroups --------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(3))
def test_delete_returns_results_for_each_group(version: int) -> None:
    host = host_with_groups()

    found = delete(host, "g", "empty", "simple", "none", "new", "empty", version=version)

    assert found == [
        ("g", ErrorCode.NON_EMPTY_GROUP),
        ("empty", 0),
        ("simple", 0),
        ("none", ErrorCode.GROUP_ID_NOT_FOUND),
        ("new", ErrorCode.NON_EMPTY_GROUP),
        ("empty", 0),
    ]
    assert host.machine.offsets.deleted == ["empty", "simple"]
    assert host.written[-1] == [(GroupMetadataKey(group="empty"), None)]
    assert listed(host) == {"g", "simple", "new"}


def test_deleted_group_stays_deleted_after_a_load() -> None:
    host = classic_host()
    (client,) = form_group(host, Client(host))
    client.leave()
    delete(host, "g")

    host.reload()
    assert not host.machine.groups
    (again,) = form_group(host, Client(host))

    assert again.generation == 1


def test_delete_forgets_an_id_that_was_given_out() -> None:
    host = classic_host()
    client = Client(host)
    client.member_id = value_of(client.send_join()).member_id

    assert delete(host, "g") == [("g", 0)]
    assert not host.machine.groups and not len(host.timers)
