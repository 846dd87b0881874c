"""Operations and kinds of resources, numbered as in Kafka's ACL requests (KIP-430)."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

from kbroker.errors import ErrorCode


class AclOperation(IntEnum):
    """Operations that ACLs allow or deny. ANY stands in filters, ALL in ACLs."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Kind(IntEnum):
    """The kind of a resource."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7

    @property
    def error(self) -> ErrorCode:
        """The error for a client that is not authorized."""
        return _ERRORS[self]

    @property
    def all_operations(self) -> int:
        """A bit for each operation that the kind has, as sent to clients."""
        return _MASKS[self]

    @property
    def operations(self) -> tuple[AclOperation, ...]:
        return _OPERATIONS[self]


# The name of the only resource of kind CLUSTER.
CLUSTER_NAME = "kafka-cluster"

_ERRORS = {
    Kind.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    Kind.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    Kind.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    Kind.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    Kind.DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    # Of the owner of a token, and asked about nowhere else.
    Kind.USER: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}
_O = AclOperation
_OPERATIONS = {
    Kind.TOPIC: (_O.READ, _O.WRITE, _O.CREATE, _O.DELETE, _O.ALTER, _O.DESCRIBE,
                 _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS),
    Kind.GROUP: (_O.READ, _O.DELETE, _O.DESCRIBE, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS),
    Kind.CLUSTER: (_O.CREATE, _O.ALTER, _O.DESCRIBE, _O.CLUSTER_ACTION, _O.DESCRIBE_CONFIGS,
                   _O.ALTER_CONFIGS, _O.IDEMPOTENT_WRITE),
    Kind.TRANSACTIONAL_ID: (_O.DESCRIBE, _O.WRITE),
    Kind.DELEGATION_TOKEN: (_O.DESCRIBE,),
    Kind.USER: (_O.CREATE_TOKENS, _O.DESCRIBE_TOKENS),
}  # fmt: skip


def mask(operations: Iterable[AclOperation]) -> int:
    """A bit mask of operations."""
    return sum(1 << operation for operation in operations)


_MASKS = {kind: mask(operations) for kind, operations in _OPERATIONS.items()}
