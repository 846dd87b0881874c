"""Every API key and the versions the codec knows; imports message modules on first use.

The ranges join Kafka 3.9's first versions with Kafka 4.3's last ones. They say what can be decoded,
not what the broker announces: that follows from the handlers. Keys of the KRaft quorum are left
out.
"""

from __future__ import annotations

from enum import IntEnum
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kbroker.protocol.message import Message

NEVER = 0x8000  # First flexible version of an API that has none; no version reaches it.


class ApiKey(IntEnum):
    """Name = key, first version, last version, first flexible version (KIP-482).

    The name decides the module and the classes: FIND_COORDINATOR is ``messages.find_coordinator``
    with ``FindCoordinatorRequest`` and ``FindCoordinatorResponse``.
    """

    versions: tuple[int, int]
    first_flexible: int

    # The defaults are for type checkers, which take a look-up ``ApiKey(18)`` for a creation.
    def __new__(
        cls, key: int, first: int = 0, last: int = 0, first_flexible: int = NEVER
    ) -> ApiKey:
        member = int.__new__(cls, key)
        member._value_ = key
        member.versions = first, last
        member.first_flexible = first_flexible
        return member

    PRODUCE = 0, 0, 13, 9
    FETCH = 1, 0, 18, 12
    LIST_OFFSETS = 2, 0, 11, 6
    METADATA = 3, 0, 13, 9
    LEADER_AND_ISR = 4, 0, 7, 4
    STOP_REPLICA = 5, 0, 4, 2
    UPDATE_METADATA = 6, 0, 8, 6
    CONTROLLED_SHUTDOWN = 7, 0, 3, 3
    OFFSET_COMMIT = 8, 0, 10, 8
    OFFSET_FETCH = 9, 0, 10, 6
    FIND_COORDINATOR = 10, 0, 6, 3
    JOIN_GROUP = 11, 0, 9, 6
    HEARTBEAT = 12, 0, 4, 4
    LEAVE_GROUP = 13, 0, 5, 4
    SYNC_GROUP = 14, 0, 5, 4
    DESCRIBE_GROUPS = 15, 0, 6, 5
    LIST_GROUPS = 16, 0, 5, 3
    SASL_HANDSHAKE = 17, 0, 1, NEVER
    API_VERSIONS = 18, 0, 4, 3
    CREATE_TOPICS = 19, 0, 7, 5
    DELETE_TOPICS = 20, 0, 6, 4
    DELETE_RECORDS = 21, 0, 2, 2
    INIT_PRODUCER_ID = 22, 0, 6, 2
    OFFSET_FOR_LEADER_EPOCH = 23, 0, 4, 4
    ADD_PARTITIONS_TO_TXN = 24, 0, 5, 3
    ADD_OFFSETS_TO_TXN = 25, 0, 4, 3
    END_TXN = 26, 0, 5, 3
    WRITE_TXN_MARKERS = 27, 0, 2, 1
    TXN_OFFSET_COMMIT = 28, 0, 5, 3
    DESCRIBE_ACLS = 29, 0, 3, 2
    CREATE_ACLS = 30, 0, 3, 2
    DELETE_ACLS = 31, 0, 3, 2
    DESCRIBE_CONFIGS = 32, 0, 4, 4
    ALTER_CONFIGS = 33, 0, 2, 2
    ALTER_REPLICA_LOG_DIRS = 34, 0, 2, 2
    DESCRIBE_LOG_DIRS = 35, 0, 5, 2
    SASL_AUTHENTICATE = 36, 0, 2, 2
    CREATE_PARTITIONS = 37, 0, 3, 2
    CREATE_DELEGATION_TOKEN = 38, 0, 3, 2
    RENEW_DELEGATION_TOKEN = 39, 0, 2, 2
    EXPIRE_DELEGATION_TOKEN = 40, 0, 2, 2
    DESCRIBE_DELEGATION_TOKEN = 41, 0, 3, 2
    DELETE_GROUPS = 42, 0, 2, 2
    ELECT_LEADERS = 43, 0, 2, 2
    INCREMENTAL_ALTER_CONFIGS = 44, 0, 1, 1
    ALTER_PARTITION_REASSIGNMENTS = 45, 0, 1, 0
    LIST_PARTITION_REASSIGNMENTS = 46, 0, 0, 0
    OFFSET_DELETE = 47, 0, 0, NEVER
    DESCRIBE_CLIENT_QUOTAS = 48, 0, 1, 1
    ALTER_CLIENT_QUOTAS = 49, 0, 1, 1
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50, 0, 0, 0
    ALTER_USER_SCRAM_CREDENTIALS = 51, 0, 0, 0
    DESCRIBE_QUORUM = 55, 0, 2, 0
    ALTER_PARTITION = 56, 0, 3, 0
    UPDATE_FEATURES = 57, 0, 2, 0
    ENVELOPE = 58, 0, 0, 0
    DESCRIBE_CLUSTER = 60, 0, 2, 0
    DESCRIBE_PRODUCERS = 61, 0, 0, 0
    BROKER_REGISTRATION = 62, 0, 4, 0
    BROKER_HEARTBEAT = 63, 0, 2, 0
    UNREGISTER_BROKER = 64, 0, 0, 0
    DESCRIBE_TRANSACTIONS = 65, 0, 0, 0
    LIST_TRANSACTIONS = 66, 0, 2, 0
    ALLOCATE_PRODUCER_IDS = 67, 0, 0, 0
    CONSUMER_GROUP_HEARTBEAT = 68, 0, 1, 0
    CONSUMER_GROUP_DESCRIBE = 69, 0, 1, 0
    GET_TELEMETRY_SUBSCRIPTIONS = 71, 0, 0, 0
    PUSH_TELEMETRY = 72, 0, 0, 0
    LIST_CONFIG_RESOURCES = 74, 0, 1, 0
    DESCRIBE_TOPIC_PARTITIONS = 75, 0, 0, 0
    SHARE_GROUP_HEARTBEAT = 76, 1, 1, 0
    SHARE_GROUP_DESCRIBE = 77, 1, 1, 0
    SHARE_FETCH = 78, 1, 2, 0
    SHARE_ACKNOWLEDGE = 79, 1, 2, 0
    ADD_RAFT_VOTER = 80, 0, 1, 0
    REMOVE_RAFT_VOTER = 81, 0, 0, 0
    INITIALIZE_SHARE_GROUP_STATE = 83, 0, 0, 0
    READ_SHARE_GROUP_STATE = 84, 0, 0, 0
    WRITE_SHARE_GROUP_STATE = 85, 0, 1, 0
    DELETE_SHARE_GROUP_STATE = 86, 0, 0, 0
    READ_SHARE_GROUP_STATE_SUMMARY = 87, 0, 1, 0
    STREAMS_GROUP_HEARTBEAT = 88, 0, 0, 0
    STREAMS_GROUP_DESCRIBE = 89, 0, 0, 0
    DESCRIBE_SHARE_GROUP_OFFSETS = 90, 0, 1, 0
    ALTER_SHARE_GROUP_OFFSETS = 91, 0, 0, 0
    DELETE_SHARE_GROUP_OFFSETS = 92, 0, 0, 0
    # Between kbrokers only, and far from the keys that Kafka may use next.
    PEER_STATUS = 20_001, 0, 0, 0


_BY_KEY: dict[int, ApiKey] = {int(key): key for key in ApiKey}
_classes: dict[tuple[int, str], type[Message]] = {}


def find(key: int) -> ApiKey | None:
    """The API for a key from the wire; None if kbroker does not know it."""
    return _BY_KEY.get(key)


def title(key: int) -> str:
    """The API's name as the protocol guide writes it."""
    known = find(key)
    return f"API key {key}" if known is None else known.name.title().replace("_", "")


def request_class(key: int) -> type[Message]:
    """Return the class of the API's request, imported on first use. KeyError if unknown."""
    return _classes.get((key, "Request")) or _import_class(key, "Request")


def response_class(key: int) -> type[Message]:
    """Return the class of the API's response, imported on first use. KeyError if unknown."""
    return _classes.get((key, "Response")) or _import_class(key, "Response")


def _import_class(key: int, suffix: str) -> type[Message]:
    name = _BY_KEY[key].name
    module = import_module(f"kbroker.protocol.messages.{name.lower()}")
    made: type[Message] = getattr(module, name.title().replace("_", "") + suffix)
    _classes[key, suffix] = made
    return made
