"""The principals of the authorization matrix, their ACLs, and what a broker answers each."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from support.clients.wire_client import WireClient
from support.security.acl_requests import acl, create
from support.security.authorization_cases import (
    EXISTING,
    GROUP_NAME,
    OPEN,
    PREFIX,
    TRANSACTION,
    UNNAMED,
    Case,
    Names,
)
from support.security.secured import SecuredClient

from kbroker.errors import ErrorCode
from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Struct
from kbroker.protocol.messages.api_versions import ApiVersionsRequest
from kbroker.protocol.messages.create_topics import CreateTopicsRequest
from kbroker.protocol.messages.find_coordinator import FindCoordinatorRequest
from kbroker.protocol.messages.init_producer_id import InitProducerIdRequest
from kbroker.protocol.messages.metadata import MetadataRequest
from kbroker.protocol.messages.offset_commit import OffsetCommitRequest
from kbroker.security.acls import AclBinding, PatternType, Permission
from kbroker.security.operations import CLUSTER_NAME, AclOperation, Kind
from kbroker.testing import wait_until

LISTED = "m-listed"  # a group, and a transactional id
ADMIN, PASSWORD = "admin", "secret"
# Of principals that are allowed, or denied, one operation.
ONE_OF = [(kind, operation) for kind in Kind for operation in kind.operations]
ALLOW, DENY = Permission.ALLOW, Permission.DENY
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
FIXED = {Kind.CLUSTER: CLUSTER_NAME}
# Codes that a coordinator has while it is created and loaded.
COMING = {
    int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
    int(ErrorCode.COORDINATOR_NOT_AVAILABLE),
    int(ErrorCode.NOT_COORDINATOR),
}
READY_S = 60.0


def one_name(prefix: str, kind: Kind, operation: AclOperation) -> str:
    return f"{prefix}_{kind.name}_{operation.name}".lower()


ALLOWED = {one_name("may", *one): one for one in ONE_OF}
DENIED = {one_name("denied", *one): one for one in ONE_OF}
SPECIAL = ("nobody", "everything", "all_denied", "elsewhere", "dominated")
PRINCIPALS = (ADMIN, *SPECIAL, *ALLOWED, *DENIED)
USERS = dict.fromkeys(PRINCIPALS, PASSWORD)


def acls() -> Iterator[AclBinding]:
    """``may_…``: one operation, on names with the prefix. ``denied_…``: everything but one."""
    read = acl("*", AclOperation.READ, Kind.TOPIC, OPEN, principal="User:*")
    yield read
    for name, (kind, operation) in ALLOWED.items():
        pattern, resource = (LITERAL, CLUSTER_NAME) if kind in FIXED else (PREFIXED, PREFIX)
        yield acl("*", operation, kind, resource, pattern, ALLOW, f"User:{name}")
    for name, (kind, operation) in DENIED.items():
        yield from everything(name)
        denied = FIXED.get(kind, "*") if kind is not Kind.TOPIC else EXISTING
        yield acl("*", operation, kind, denied, LITERAL, DENY, f"User:{name}")
    yield from everything("everything")
    yield from everything("all_denied")
    for kind in Kind:
        pattern, resource = (LITERAL, CLUSTER_NAME) if kind in FIXED else (PREFIXED, PREFIX)
        yield acl("*", AclOperation.ALL, kind, resource, pattern, DENY, "User:all_denied")
    yield from everything("elsewhere", "192.0.2.1")
    write = AclOperation.WRITE
    yield acl("*", write, Kind.TOPIC, EXISTING, LITERAL, ALLOW, "User:dominated")
    yield acl("*", write, Kind.TOPIC, PREFIX, PREFIXED, DENY, "User:dominated")


def everything(name: str, host: str = "*") -> Iterator[AclBinding]:
    for kind in Kind:
        resource = FIXED.get(kind, "*")
        yield acl(host, AclOperation.ALL, kind, resource, LITERAL, ALLOW, f"User:{name}")


class Answer(NamedTuple):
    """What a response says of errors, names and rights; None for a closed connection."""

    outline: Any

    @property
    def codes(self) -> set[int]:
        """All error codes."""
        return set(codes_in(self.outline))


class Side:
    """One of the two brokers. versions: by API."""

    def __init__(self, address: tuple[str, int], principals: Iterable[str]) -> None:
        self._address = address
        self._clients: dict[str, WireClient] = {}
        self._asked = 0
        admin = self.client(ADMIN)
        response = admin.call(ApiVersionsRequest(), 0)
        self.versions = {
            row.api_key: range(row.min_version, row.max_version + 1) for row in response.api_keys
        }
        self._own = {name: f"m-own-{name.replace('_', '-')}" for name in principals}
        self._ids: dict[str, bytes] = {}
        self._prepare(admin)

    def client(self, principal: str) -> WireClient:
        found = self._clients.get(principal)
        if found is None:
            found = SecuredClient(self._address, user=principal, password=PASSWORD)
            self._clients[principal] = found
        return found

    def forget(self, principal: str) -> None:
        client = self._clients.pop(principal, None)
        if client is not None:
            client.close()

    def close(self) -> None:
        for principal in list(self._clients):
            self.forget(principal)

    def _prepare(self, admin: WireClient) -> None:
        """Topics, coordinators and ACLs."""
        names = [EXISTING, UNNAMED, OPEN, *self._own.values()]
        cls = CreateTopicsRequest
        rows = [cls.CreatableTopic(name=n, num_partitions=1, replication_factor=1) for n in names]
        response = admin.call(cls(topics=rows, timeout_ms=60_000), 5)
        assert not any(topic.error_code for topic in response.topics), response
        for kind, prefix in enumerate((GROUP_NAME, TRANSACTION)):
            wait_until(lambda k=kind, p=prefix: has_coordinators(admin, k, p), READY_S)
        commit = OffsetCommitRequest(group_id=LISTED, topics=[])
        commit.topics = [
            OffsetCommitRequest.OffsetCommitRequestTopic(
                name=EXISTING,
                partitions=[OffsetCommitRequest.OffsetCommitRequestPartition(committed_offset=0)],
            )
        ]
        wait_until(lambda: committed(admin, commit), READY_S)
        request = InitProducerIdRequest(transactional_id=LISTED, transaction_timeout_ms=60_000)
        wait_until(lambda: not admin.call(request, 1).error_code, READY_S)
        create(admin, *acls())

        def are_there() -> bool:
            found = admin.call(MetadataRequest(topics=None), 10).topics
            self._ids = {topic.name: bytes(topic.topic_id) for topic in found}
            (row, *_) = admin.call(MetadataRequest(topics=[]), 10).brokers
            self.node_id = row.node_id
            return not set(names) - self._ids.keys()

        wait_until(are_there, READY_S, "all topics are there")

    def names(self, principal: str, own: str) -> Names:
        own_id = self._ids[self._own[principal]]
        return Names(own, self._ids[EXISTING], own_id, self.node_id)

    def ask(self, case: Case, version: int, principal: str) -> Answer:
        """Ask once more while a coordinator is not there yet. What the request creates is new, and
        has the same name on both sides, as both are asked the same.
        """
        self._asked += 1
        own = f"{version}-{principal}-{self._asked}"
        request = case.request(version, self.names(principal, own))
        deadline = time.monotonic() + READY_S
        while True:
            try:
                response = self.client(principal).call(request, version)
                answer = Answer(outline(response, is_list=case.is_list))
            except OSError:
                self.forget(principal)
                return Answer(None)
            if not answer.codes & COMING or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        if case.key is ApiKey.SASL_HANDSHAKE:
            self.forget(principal)
        return answer


def committed(admin: WireClient, request: OffsetCommitRequest) -> bool:
    (topic,) = admin.call(request, 2).topics
    return not topic.partitions[0].error_code


def has_coordinators(admin: WireClient, kind: int, prefix: str) -> bool:
    request = FindCoordinatorRequest(key=prefix, key_type=kind)
    return not admin.call(request, 1).error_code


NAMES = {
    "name", "topic", "topic_name", "group_id", "transactional_id", "key", "resource_name", "user",
    "topic_id", "config_name",
}  # fmt: skip


# Of the broker and not of what a client may do.
LEFT_OUT = {"supported_features", "finalized_features", "nodes"}


def outline(found: Any, *, is_list: bool = False) -> Any:
    """Codes, names and rights of a response, in an order that is always the same.

    is_list: of everything that there is: without what comes and goes with the other requests.
    """
    if isinstance(found, Struct):
        values = {}
        for name in found.__slots__:
            value = getattr(found, name)
            if name in LEFT_OUT:
                continue
            if name.endswith(("error_code", "authorized_operations")):
                values[name] = value
            elif name == "topic_id":
                values[name] = "none" if value == bytes(16) else "id"
            elif name in NAMES:
                values[name] = value
            elif isinstance(value, (list, Struct)):
                inner = outline(value, is_list=is_list)
                if inner:
                    values[name] = inner
        return values
    if isinstance(found, list):
        rows = [outline(row, is_list=is_list) for row in found]
        # Kafka repeats the rows of groups that it does not know.
        unique = {repr(row): row for row in rows if row and not (is_list and is_own(row))}
        return [unique[text] for text in sorted(unique)]
    return None


def is_own(row: dict[str, Any]) -> bool:
    """Internal topics, and what other requests have created."""
    name = row.get("name") or row.get("group_id") or row.get("transactional_id") or ""
    return name.startswith(("__", "m-own-", "m-made-", f"{GROUP_NAME}-", f"{TRANSACTION}-"))


def codes_in(found: Any) -> Iterator[int]:
    if isinstance(found, dict):
        for name, value in found.items():
            if name.endswith("error_code"):
                yield value
            else:
                yield from codes_in(value)
    elif isinstance(found, list):
        for row in found:
            yield from codes_in(row)


def common_versions(case: Case, *sides: Side, all_versions: bool) -> list[int]:
    """The versions to ask: the oldest and the newest, or all."""
    found = [
        version
        for version in case.versions[:100]
        if all(version in side.versions.get(case.key, ()) for side in sides)
    ]
    return found if all_versions else found[-1:]
