"""CreateAcls, DescribeAcls and DeleteAcls: what is checked, and what the controller is asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from support.network.network_process import NetworkProcess

from kbroker.errors import ErrorCode, WireError
from kbroker.ipc.calls import AclResult, DeletedAcl, FilterDeletions
from kbroker.protocol.messages.create_acls import CreateAclsRequest
from kbroker.protocol.messages.delete_acls import DeleteAclsRequest
from kbroker.protocol.messages.describe_acls import DescribeAclsRequest
from kbroker.security.acl_authorizer import AclAuthorizer
from kbroker.security.acl_index import AclIndex
from kbroker.security.acls import (
    AccessControlEntry,
    AclBinding,
    AclFilter,
    PatternType,
    Permission,
    ResourcePattern,
)
from kbroker.security.operations import AclOperation, Kind
from kbroker.security.principal import ANONYMOUS, KafkaPrincipal

pytestmark = pytest.mark.unit

TOPIC = ResourcePattern(Kind.TOPIC, PatternType.LITERAL, "t")
PREFIX = ResourcePattern(Kind.TOPIC, PatternType.PREFIXED, "t")
ALICE = AccessControlEntry("User:alice", "*", AclOperation.READ, Permission.ALLOW)
BOB = AccessControlEntry("User:bob", "192.0.2.1", AclOperation.WRITE, Permission.DENY)


@pytest.fixture
def process() -> NetworkProcess:
    """It decides by ACLs, and the client may do everything."""
    process = NetworkProcess()
    process.acls = AclIndex()
    process.follow(AclAuthorizer(process.acls, [ANONYMOUS], allows_if_none=False))
    process.set_response("create_acls", lambda to, acls, **_: [AclResult() for _ in acls])
    return process


def creation(**fields: Any) -> Any:
    values = {
        "resource_type": Kind.TOPIC,
        "resource_name": "t",
        "resource_pattern_type": PatternType.LITERAL,
        "principal": "User:alice",
        "host": "*",
        "operation": AclOperation.READ,
        "permission_type": Permission.ALLOW,
    }
    return CreateAclsRequest.AclCreation(**(values | fields))


def create(process: NetworkProcess, *creations: Any, version: int = 3) -> list[Any]:
    response = process.ask(CreateAclsRequest(creations=list(creations)), version)
    return [result.error_code for result in response.results]


def asked_filter(cls: Any = DescribeAclsRequest, **fields: Any) -> Any:
    values = {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "pattern_type_filter": PatternType.ANY,
        "principal_filter": None,
        "host_filter": None,
        "operation": AclOperation.ANY,
        "permission_type": Permission.ANY,
    }
    return cls(**(values | fields))


@pytest.mark.parametrize("version", range(4))
def test_acls_are_created_by_the_controller_process_of_this_broker(
    process: NetworkProcess, version: int
) -> None:
    process.connection.access = process.accesses.of(ANONYMOUS, "192.0.2.9")

    assert create(process, creation(), version=version) == [0]

    (call,) = process.calls("create_acls")
    assert [AclBinding(ResourcePattern(*r), AccessControlEntry(*e)) for r, e in call["acls"]] == [
        AclBinding(TOPIC, ALICE)
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {"resource_type": 1},
        {"resource_type": 0},
        {"resource_type": 8},
        {"resource_pattern_type": PatternType.ANY},
        {"resource_pattern_type": PatternType.MATCH},
        {"resource_pattern_type": 5},
        {"operation": 0},
        {"operation": AclOperation.ANY},
        {"operation": 77},
        {"permission_type": Permission.ANY},
        {"permission_type": 0},
        {"resource_name": ""},
        {"resource_name": "a/b"},
        {"resource_name": ".."},
        {"resource_name": "a\0"},
        {"resource_type": Kind.CLUSTER},
        {"principal": "alice"},
        {"principal": ":alice"},
        {"host": ""},
    ],
    ids=str,
)
def test_acl_that_cannot_be_is_rejected_alone(process: NetworkProcess, fields: Any) -> None:
    """The others of its request are created, and the results keep their order."""
    codes = create(process, creation(), creation(**fields), creation(resource_name="u"))

    assert codes == [0, ErrorCode.INVALID_REQUEST, 0]
    (call,) = process.calls("create_acls")
    assert len(call["acls"]) == 2


def test_acl_with_a_prefix_needs_version_1(process: NetworkProcess) -> None:
    request = asked_filter(pattern_type_filter=PatternType.PREFIXED)

    assert create(process, creation(resource_pattern_type=PatternType.PREFIXED), version=1) == [0]
    assert process.ask(request, 1).error_code == 0


def test_acl_results_are_those_of_the_store(process: NetworkProcess) -> None:
    failed = AclResult(int(ErrorCode.UNKNOWN_SERVER_ERROR), "why")
    process.set_response("create_acls", lambda to, **_: [AclResult(), failed])

    response = process.ask(CreateAclsRequest(creations=[creation(), creation()]), 3)

    found = [(result.error_code, result.error_message) for result in response.results]
    assert found == [(0, ""), (ErrorCode.UNKNOWN_SERVER_ERROR, "why")]


def described(response: Any) -> dict[ResourcePattern, set[AccessControlEntry]]:
    return {
        ResourcePattern(row.resource_type, row.pattern_type, row.resource_name): {
            AccessControlEntry(acl.principal, acl.host, acl.operation, acl.permission_type)
            for acl in row.acls
        }
        for row in response.resources
    }


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({}, {TOPIC: {ALICE, BOB}, PREFIX: {BOB}}),
        ({"resource_type_filter": Kind.GROUP}, {}),
        ({"pattern_type_filter": PatternType.PREFIXED}, {PREFIX: {BOB}}),
        ({"resource_name_filter": "tx", "pattern_type_filter": PatternType.MATCH}, {PREFIX: {BOB}}),
        ({"principal_filter": "User:alice"}, {TOPIC: {ALICE}}),
        ({"operation": AclOperation.READ}, {TOPIC: {ALICE}}),
        ({"permission_type": Permission.DENY, "host_filter": "192.0.2.1"},
         {TOPIC: {BOB}, PREFIX: {BOB}}),
    ],
    ids=["all", "kind", "pattern", "match", "principal", "operation", "denied host"],
)  # fmt: skip
def test_acls_are_described_as_far_as_the_filter_matches(
    process: NetworkProcess, fields: Any, found: Any
) -> None:
    assert process.acls is not None
    process.acls.put(TOPIC, [ALICE, BOB])
    process.acls.put(PREFIX, [BOB])

    response = process.ask(asked_filter(**fields), 3)

    assert (response.error_code, described(response)) == (0, found)


def test_acls_of_version_0_are_the_literal_ones(process: NetworkProcess) -> None:
    assert process.acls is not None
    process.acls.put(TOPIC, [ALICE])
    process.acls.put(PREFIX, [BOB])

    assert described(process.ask(asked_filter(pattern_type_filter=3), 0)) == {TOPIC: {ALICE}}


@pytest.mark.parametrize(
    "fields",
    [{"resource_type_filter": 0}, {"pattern_type_filter": 9}, {"operation": 0},
     {"permission_type": 4}],
    ids=str,
)  # fmt: skip
def test_acl_filter_with_unknown_numbers_is_rejected(process: NetworkProcess, fields: Any) -> None:
    response = process.ask(asked_filter(**fields), 3)
    assert response.error_code == ErrorCode.INVALID_REQUEST

    request = DeleteAclsRequest(
        filters=[asked_filter(DeleteAclsRequest.DeleteAclsFilter, **some) for some in ({}, fields)]
    )
    codes = [result.error_code for result in process.ask(request, 3).filter_results]
    assert codes == [ErrorCode.INVALID_REQUEST] * 2
    assert process.calls("delete_acls") == []


def test_acls_that_were_deleted_are_named(process: NetworkProcess) -> None:
    asked: list[AclFilter] = []

    def delete(to: Any, filters: Sequence[Any], **_: Any) -> list[FilterDeletions]:
        asked.extend(AclFilter(*one) for one in filters)
        rows = [DeletedAcl(AclBinding(TOPIC, ALICE)), DeletedAcl(AclBinding(PREFIX, BOB), 1, "why")]
        return [FilterDeletions(rows), FilterDeletions([])]

    process.set_response("delete_acls", delete)
    cls = DeleteAclsRequest.DeleteAclsFilter
    request = DeleteAclsRequest(
        filters=[asked_filter(cls), asked_filter(cls, principal_filter="User:x")]
    )

    first, second = process.ask(request, 3).filter_results

    assert [one.principal for one in asked] == [None, "User:x"]
    rows = [(row.resource_name, row.pattern_type, row.principal, row.error_code)
            for row in first.matching_acls]  # fmt: skip
    assert rows == [("t", 3, "User:alice", 0), ("t", 4, "User:bob", 1)]
    assert (second.error_code, second.matching_acls) == (0, [])


def test_acl_changes_name_who_asked(process: NetworkProcess) -> None:
    alice = KafkaPrincipal("User", "alice")
    assert process.acls is not None
    process.follow(AclAuthorizer(process.acls, [alice], allows_if_none=False))
    process.connection.access = process.accesses.of(alice, "192.0.2.9")

    create(process, creation())

    assert process.calls("create_acls")[0]["asked_by"] == "User:alice"


def test_acl_changes_without_a_controller_are_rejected_one_by_one(process: NetworkProcess) -> None:
    def answer(to: Any, **_: Any) -> Any:
        raise WireError(ErrorCode.REQUEST_TIMED_OUT, "The metadata store cannot be reached")

    process.set_response("create_acls", answer)

    assert create(process, creation(), creation()) == [ErrorCode.REQUEST_TIMED_OUT] * 2
