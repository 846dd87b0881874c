"""Users (SCRAM credentials) and ACLs, of any Kafka from 2.7."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from kbroker.client.connections.cluster import Cluster
from kbroker.client.connections.controller_calls import ask_controller, check
from kbroker.protocol.messages.alter_user_scram_credentials import AlterUserScramCredentialsRequest
from kbroker.protocol.messages.create_acls import CreateAclsRequest
from kbroker.protocol.messages.delete_acls import DeleteAclsRequest
from kbroker.protocol.messages.describe_acls import DescribeAclsRequest
from kbroker.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
)

# WIRE: the numbers of KIP-140, KIP-290 and KIP-554.
RESOURCE_TYPES = {
    "ANY": 1,
    "TOPIC": 2,
    "GROUP": 3,
    "CLUSTER": 4,
    "TRANSACTIONAL_ID": 5,
    "DELEGATION_TOKEN": 6,
    "USER": 7,
}
PATTERN_TYPES = {"ANY": 1, "MATCH": 2, "LITERAL": 3, "PREFIXED": 4}
OPERATIONS = {
    "ANY": 1,
    "ALL": 2,
    "READ": 3,
    "WRITE": 4,
    "CREATE": 5,
    "DELETE": 6,
    "ALTER": 7,
    "DESCRIBE": 8,
    "CLUSTER_ACTION": 9,
    "DESCRIBE_CONFIGS": 10,
    "ALTER_CONFIGS": 11,
    "IDEMPOTENT_WRITE": 12,
    "CREATE_TOKENS": 13,
    "DESCRIBE_TOKENS": 14,
    "TWO_PHASE_COMMIT": 15,
}
PERMISSIONS = {"ANY": 1, "DENY": 2, "ALLOW": 3}
MECHANISMS = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
CLUSTER_NAME = "kafka-cluster"
# Kafka accepts 4096 to 16384.
ITERATIONS = 8192
# Salts look like those of Kafka's own clients: another form would tell users that exist from the
# ones that a broker makes up a salt for.
# As Java's clients make a salt, so that none tells who has made it, or whether it is made up.
_SALT_BITS = 130
_DIGESTS = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


class Acl(NamedTuple):
    """An ACL, with the words of Kafka; as a filter, ANY and None match everything."""

    resource_type: str = "ANY"
    name: str | None = None
    pattern: str = "ANY"
    principal: str | None = None
    host: str | None = None
    operation: str = "ANY"
    permission: str = "ANY"


class Credential(NamedTuple):
    """That a user has a SCRAM credential; what is in it, no broker tells."""

    user: str
    mechanism: str
    iterations: int


# -- SCRAM


def list_credentials(cluster: Cluster, users: Iterable[str] | None = None) -> list[Credential]:
    """The credentials of these users, of all without ``users``, sorted.

    Raises RejectedError, RESOURCE_NOT_FOUND for a user that has none.
    """
    row = DescribeUserScramCredentialsRequest.UserName
    named = None if users is None else [row(name=name) for name in users]
    if named == []:
        return []
    response = ask_controller(
        cluster,
        DescribeUserScramCredentialsRequest(users=named),
        "describe SCRAM credentials",
        lambda found: [found.error_code, *(each.error_code for each in found.results)],
    )
    check(response, "SCRAM credentials")
    names = {number: name for name, number in MECHANISMS.items()}
    credentials = []
    for result in response.results:
        check(result, f"user {result.user}")
        for info in result.credential_infos:
            mechanism = names.get(info.mechanism, f"mechanism {info.mechanism}")
            credentials.append(Credential(result.user, mechanism, info.iterations))
    return sorted(credentials)


def set_password(
    cluster: Cluster,
    user: str,
    password: str,
    mechanisms: Sequence[str],
    iterations: int = ITERATIONS,
) -> None:
    """Let a user log in with a password, by these mechanisms. The password does not leave this
    process; the broker gets what it needs to check one.

    Raises RejectedError, and ValueError for an empty password.
    """
    if not password:
        raise ValueError(f"the password of user {user!r} is empty")
    row = AlterUserScramCredentialsRequest.ScramCredentialUpsertion
    for mechanism in mechanisms:
        salt = _in_base_36(secrets.randbits(_SALT_BITS)).encode()
        salted = hashlib.pbkdf2_hmac(_DIGESTS[mechanism], password.encode(), salt, iterations)
        credential = row(
            name=user,
            mechanism=MECHANISMS[mechanism],
            iterations=iterations,
            salt=salt,
            salted_password=salted,
        )
        # COMPAT: KRaft's controller takes a user once in a request.
        _alter(cluster, AlterUserScramCredentialsRequest(deletions=[], upsertions=[credential]))


def _in_base_36(number: int) -> str:
    digits = ""
    while number or not digits:
        number, digit = divmod(number, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + digits
    return digits


def delete_credentials(cluster: Cluster, credentials: Iterable[Credential]) -> None:
    """Raises RejectedError."""
    row = AlterUserScramCredentialsRequest.ScramCredentialDeletion
    for each in credentials:
        deletion = row(name=each.user, mechanism=MECHANISMS[each.mechanism])
        _alter(cluster, AlterUserScramCredentialsRequest(deletions=[deletion], upsertions=[]))


def _alter(cluster: Cluster, request: AlterUserScramCredentialsRequest) -> None:
    response = ask_controller(
        cluster,
        request,
        "alter SCRAM credentials",
        lambda found: [each.error_code for each in found.results],
    )
    for result in response.results:
        check(result, f"user {result.user}")


# -- ACLs


def create_acls(cluster: Cluster, acls: Iterable[Acl]) -> None:
    """Raises RejectedError of the first that is rejected; others may have been created."""
    rows = list(acls)
    row = CreateAclsRequest.AclCreation
    request = CreateAclsRequest(
        creations=[
            row(
                resource_type=RESOURCE_TYPES[acl.resource_type],
                resource_name=acl.name or "",
                resource_pattern_type=PATTERN_TYPES[acl.pattern],
                principal=acl.principal or "",
                host=acl.host or "",
                operation=OPERATIONS[acl.operation],
                permission_type=PERMISSIONS[acl.permission],
            )
            for acl in rows
        ]
    )
    response = ask_controller(
        cluster, request, "create ACLs", lambda found: [each.error_code for each in found.results]
    )
    for acl, result in zip(rows, response.results, strict=True):
        check(result, f"ACL {acl_text(acl)}")


def list_acls(cluster: Cluster, acl_filter: Acl) -> list[Acl]:
    """Those that match, sorted. Raises RejectedError."""
    request = DescribeAclsRequest(**_filter_fields(acl_filter))
    response = cluster.call(None, request, what="describe ACLs")
    check(response, "describe ACLs")
    return sorted(_acl(resource, acl) for resource in response.resources for acl in resource.acls)


def delete_acls(cluster: Cluster, filters: Iterable[Acl]) -> list[Acl]:
    """Delete those that match; returns them. Raises RejectedError."""
    row = DeleteAclsRequest.DeleteAclsFilter
    rows = [row(**_filter_fields(each)) for each in filters]
    response = ask_controller(
        cluster,
        DeleteAclsRequest(filters=rows),
        "delete ACLs",
        lambda found: [each.error_code for each in found.filter_results],
    )
    deleted = set()
    for result in response.filter_results:
        check(result, "delete ACLs")
        for matching in result.matching_acls:
            acl = _acl(matching, matching)
            check(matching, f"ACL {acl_text(acl)}")
            deleted.add(acl)
    return sorted(deleted)


def acl_text(acl: Acl) -> str:
    """In words, for messages."""
    resource = f"{acl.resource_type.lower()} {acl.name}"
    if acl.pattern == "PREFIXED":
        resource += "*"
    return f"{acl.principal} {acl.permission.lower()} {acl.operation.lower()} on {resource}"


def _filter_fields(acl: Acl) -> dict[str, Any]:
    return {
        "resource_type_filter": RESOURCE_TYPES[acl.resource_type],
        "resource_name_filter": acl.name,
        "pattern_type_filter": PATTERN_TYPES[acl.pattern],
        "principal_filter": acl.principal,
        "host_filter": acl.host,
        "operation": OPERATIONS[acl.operation],
        "permission_type": PERMISSIONS[acl.permission],
    }


def _acl(resource: Any, acl: Any) -> Acl:
    return Acl(
        _word(RESOURCE_TYPES, resource.resource_type),
        resource.resource_name,
        _word(PATTERN_TYPES, resource.pattern_type),
        acl.principal,
        acl.host,
        _word(OPERATIONS, acl.operation),
        _word(PERMISSIONS, acl.permission_type),
    )


def _word(words: dict[str, int], number: int) -> str:
    return next((word for word, code in words.items() if code == number), f"UNKNOWN({number})")
