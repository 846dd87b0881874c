"""Bit masks of the operations a client may do, numbered as ACL operations are (KIP-430).

Without an authorizer everybody may do everything that makes sense for the kind of resource.
"""

from __future__ import annotations

READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE = 3, 4, 5, 6, 7, 8
CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE = 9, 10, 11, 12


def mask(*operations: int) -> int:
    """One bit for each operation."""
    return sum(1 << operation for operation in operations)


TOPIC_OPERATIONS = mask(
    READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS
)
CLUSTER_OPERATIONS = mask(
    CREATE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE
)
