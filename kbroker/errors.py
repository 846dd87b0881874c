"""Every Kafka error code in one table, and the four families of exceptions kbroker raises.

``WireError`` ends as a code in a response, ``StorageError`` takes a log directory offline,
``ConfigError`` stops the start, ``InvariantError`` ends the process. Expected outcomes are return
values, not exceptions. ``ShortageError`` is an OSError that says nothing against the disk.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from typing import cast

RETRY = True
FATAL = False

# Exit codes of the broker, and of its processes to their supervisor.
EXIT_DONE, EXIT_CRASH, EXIT_BAD_CONFIG, EXIT_CANNOT_START = 0, 1, 2, 3


class _Row:
    """A row of the table; the class statement of ``ErrorCode`` turns it into a named member."""

    def __init__(self, code: int, retriable: bool, message: str) -> None:
        self.columns = code, retriable, message

    def __set_name__(self, owner: type[ErrorCode], name: str) -> None:
        code, retriable, message = self.columns
        member: ErrorCode = int.__new__(owner, code)
        member.name, member.retriable, member.message = name, retriable, message
        _BY_CODE[code] = member
        setattr(owner, name, member)


def _row(code: int, retriable: bool, message: str) -> ErrorCode:
    return cast("ErrorCode", _Row(code, retriable, message))


_BY_CODE: dict[int, ErrorCode] = {}


class _Table(type):
    """Makes ``ErrorCode`` iterable."""

    def __iter__(cls) -> Iterator[ErrorCode]:
        return iter(_BY_CODE.values())

    def __len__(cls) -> int:
        return len(_BY_CODE)


class ErrorCode(int, metaclass=_Table):
    """An error code of the wire: an int with ``name``, ``retriable`` and a default ``message``.

    Behaves as an IntEnum, which would cost every start three times as long (2.8 ms against 0.9).
    ``ErrorCode(3)`` is the member of that code, ValueError if there is none; iterates by code.
    retriable: a client may send the same request again, possibly after refreshing its metadata.
    Source: Kafka protocol guide, "Error Codes"; the newest row is of Kafka 4.3.
    """

    name: str
    retriable: bool
    message: str

    def __new__(cls, code: int) -> ErrorCode:
        member = _BY_CODE.get(code)
        if member is None:
            raise ValueError(f"{code} is not an error code")
        return member

    def __repr__(self) -> str:
        return f"ErrorCode.{self.name}"

    def __reduce__(self) -> tuple[type[ErrorCode], tuple[int]]:
        return ErrorCode, (int(self),)

    UNKNOWN_SERVER_ERROR = _row(-1, FATAL, "The broker hit an unexpected error.")
    NONE = _row(0, FATAL, "No error.")
    OFFSET_OUT_OF_RANGE = _row(1, FATAL, "The offset lies outside the range this replica holds.")
    CORRUPT_MESSAGE = _row(2, RETRY, "The records failed their checksum, size or format check.")
    UNKNOWN_TOPIC_OR_PARTITION = _row(
        3, RETRY, "This broker does not host that topic or partition."
    )
    INVALID_FETCH_SIZE = _row(4, FATAL, "The fetch size is not valid.")
    LEADER_NOT_AVAILABLE = _row(5, RETRY, "The partition has no leader at the moment.")
    NOT_LEADER_OR_FOLLOWER = _row(6, RETRY, "This broker neither leads nor follows that partition.")
    REQUEST_TIMED_OUT = _row(7, RETRY, "The request did not complete before its timeout.")
    BROKER_NOT_AVAILABLE = _row(8, FATAL, "The broker is not available.")
    REPLICA_NOT_AVAILABLE = _row(9, RETRY, "The replica is not available on this broker.")
    MESSAGE_TOO_LARGE = _row(10, FATAL, "The record batch is larger than max.message.bytes allows.")
    STALE_CONTROLLER_EPOCH = _row(11, FATAL, "The controller has been replaced.")
    OFFSET_METADATA_TOO_LARGE = _row(12, FATAL, "The committed offset's metadata is too long.")
    NETWORK_EXCEPTION = _row(13, RETRY, "The connection was lost before the response arrived.")
    COORDINATOR_LOAD_IN_PROGRESS = _row(14, RETRY, "The coordinator is still loading its state.")
    COORDINATOR_NOT_AVAILABLE = _row(15, RETRY, "No coordinator is available yet.")
    NOT_COORDINATOR = _row(16, RETRY, "This broker is not the coordinator for that key.")
    INVALID_TOPIC_EXCEPTION = _row(
        17, FATAL, "The topic name is illegal, or the topic may not be used like that."
    )
    RECORD_LIST_TOO_LARGE = _row(18, FATAL, "The record batch is larger than a log segment.")
    NOT_ENOUGH_REPLICAS = _row(
        19, RETRY, "Fewer replicas are in sync than min.insync.replicas requires."
    )
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = _row(20, RETRY, "Appended, but too few are in sync.")
    INVALID_REQUIRED_ACKS = _row(21, FATAL, "acks must be 0, 1 or -1.")
    ILLEGAL_GENERATION = _row(22, FATAL, "The generation id is not the group's current one.")
    INCONSISTENT_GROUP_PROTOCOL = _row(23, FATAL, "The member shares no protocol with its group.")
    INVALID_GROUP_ID = _row(24, FATAL, "The group id is illegal.")
    UNKNOWN_MEMBER_ID = _row(25, FATAL, "The group has no such member.")
    INVALID_SESSION_TIMEOUT = _row(26, FATAL, "The session timeout is out of the allowed range.")
    REBALANCE_IN_PROGRESS = _row(27, FATAL, "The group is rebalancing; the member must rejoin.")
    INVALID_COMMIT_OFFSET_SIZE = _row(28, FATAL, "The offsets to commit are too large.")
    TOPIC_AUTHORIZATION_FAILED = _row(29, FATAL, "Not authorized to access the topic.")
    GROUP_AUTHORIZATION_FAILED = _row(30, FATAL, "Not authorized to access the group.")
    CLUSTER_AUTHORIZATION_FAILED = _row(31, FATAL, "Not authorized to act on the cluster.")
    INVALID_TIMESTAMP = _row(
        32, FATAL, "A record's timestamp is outside the range the topic accepts."
    )
    UNSUPPORTED_SASL_MECHANISM = _row(33, FATAL, "The broker does not offer that SASL mechanism.")
    ILLEGAL_SASL_STATE = _row(34, FATAL, "The request does not fit the state of the SASL exchange.")
    UNSUPPORTED_VERSION = _row(35, FATAL, "The broker does not support that version of the API.")
    TOPIC_ALREADY_EXISTS = _row(36, FATAL, "A topic with that name already exists.")
    INVALID_PARTITIONS = _row(37, FATAL, "The number of partitions is not valid.")
    INVALID_REPLICATION_FACTOR = _row(38, FATAL, "The replication factor exceeds the brokers.")
    INVALID_REPLICA_ASSIGNMENT = _row(39, FATAL, "The replica assignment is not valid.")
    INVALID_CONFIG = _row(40, FATAL, "The configuration is not valid.")
    NOT_CONTROLLER = _row(41, RETRY, "This broker is not the controller.")
    INVALID_REQUEST = _row(42, FATAL, "The request is malformed or contradicts itself.")
    UNSUPPORTED_FOR_MESSAGE_FORMAT = _row(43, FATAL, "The stored message format is too old for it.")
    POLICY_VIOLATION = _row(44, FATAL, "The request breaks a policy of this cluster.")
    OUT_OF_ORDER_SEQUENCE_NUMBER = _row(
        45, FATAL, "The sequence number does not follow the last one."
    )
    DUPLICATE_SEQUENCE_NUMBER = _row(46, FATAL, "The producer's sequence number was seen before.")
    INVALID_PRODUCER_EPOCH = _row(
        47, FATAL, "The producer's epoch is older than the newest one known."
    )
    INVALID_TXN_STATE = _row(48, FATAL, "The transaction's state does not allow this operation.")
    INVALID_PRODUCER_ID_MAPPING = _row(49, FATAL, "The transactional id has another producer id.")
    INVALID_TRANSACTION_TIMEOUT = _row(50, FATAL, "transaction.max.timeout.ms is exceeded.")
    CONCURRENT_TRANSACTIONS = _row(51, RETRY, "The transaction's last operation is unfinished.")
    TRANSACTION_COORDINATOR_FENCED = _row(52, FATAL, "A newer coordinator has taken over.")
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = _row(
        53, FATAL, "Not authorized to use the transactional id."
    )
    SECURITY_DISABLED = _row(54, FATAL, "No authorizer is configured.")
    OPERATION_NOT_ATTEMPTED = _row(55, FATAL, "Skipped because another part failed.")
    KAFKA_STORAGE_ERROR = _row(
        56, RETRY, "The log directory of the partition has failed or is full."
    )
    LOG_DIR_NOT_FOUND = _row(57, FATAL, "The broker has no such log directory.")
    SASL_AUTHENTICATION_FAILED = _row(58, FATAL, "SASL authentication failed.")
    UNKNOWN_PRODUCER_ID = _row(59, FATAL, "The broker holds no state for that producer id.")
    REASSIGNMENT_IN_PROGRESS = _row(60, FATAL, "A reassignment of the partition is running.")
    DELEGATION_TOKEN_AUTH_DISABLED = _row(61, FATAL, "Delegation tokens are not enabled.")
    DELEGATION_TOKEN_NOT_FOUND = _row(62, FATAL, "The delegation token is unknown.")
    DELEGATION_TOKEN_OWNER_MISMATCH = _row(
        63, FATAL, "The principal is not the owner of the token."
    )
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = _row(64, FATAL, "Not allowed on this connection.")
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = _row(
        65, FATAL, "Not authorized to use the delegation token."
    )
    DELEGATION_TOKEN_EXPIRED = _row(66, FATAL, "The delegation token has expired.")
    INVALID_PRINCIPAL_TYPE = _row(67, FATAL, "The principal type is not supported.")
    NON_EMPTY_GROUP = _row(68, FATAL, "The group still has members.")
    GROUP_ID_NOT_FOUND = _row(69, FATAL, "There is no such group.")
    FETCH_SESSION_ID_NOT_FOUND = _row(70, RETRY, "The fetch session is unknown.")
    INVALID_FETCH_SESSION_EPOCH = _row(
        71, RETRY, "The fetch session's epoch is not the expected one."
    )
    LISTENER_NOT_FOUND = _row(72, RETRY, "The leader has no listener of that name.")
    TOPIC_DELETION_DISABLED = _row(73, FATAL, "delete.topic.enable is false.")
    FENCED_LEADER_EPOCH = _row(
        74, RETRY, "The leader epoch in the request is older than the broker's."
    )
    UNKNOWN_LEADER_EPOCH = _row(
        75, RETRY, "The leader epoch in the request is newer than the broker's."
    )
    UNSUPPORTED_COMPRESSION_TYPE = _row(76, FATAL, "The version does not allow that compression.")
    STALE_BROKER_EPOCH = _row(77, FATAL, "The broker epoch is not the current one.")
    OFFSET_NOT_AVAILABLE = _row(78, RETRY, "The new leader's high watermark has not caught up yet.")
    MEMBER_ID_REQUIRED = _row(
        79, FATAL, "The member must rejoin with the id that it was just given."
    )
    PREFERRED_LEADER_NOT_AVAILABLE = _row(80, RETRY, "The preferred leader is not available.")
    GROUP_MAX_SIZE_REACHED = _row(81, FATAL, "The group has reached its maximum size.")
    FENCED_INSTANCE_ID = _row(82, FATAL, "A newer member uses the same group instance id.")
    ELIGIBLE_LEADERS_NOT_AVAILABLE = _row(
        83, RETRY, "No replica is eligible to lead the partition."
    )
    ELECTION_NOT_NEEDED = _row(84, RETRY, "The partition already has the desired leader.")
    NO_REASSIGNMENT_IN_PROGRESS = _row(85, FATAL, "The partition is not being reassigned.")
    GROUP_SUBSCRIBED_TO_TOPIC = _row(86, FATAL, "The group is subscribed to the topic.")
    INVALID_RECORD = _row(87, FATAL, "A record breaks a rule of the topic.")
    UNSTABLE_OFFSET_COMMIT = _row(88, RETRY, "Offsets of an open transaction have not settled yet.")
    THROTTLING_QUOTA_EXCEEDED = _row(89, RETRY, "The quota is used up; wait and try again.")
    PRODUCER_FENCED = _row(90, FATAL, "A newer producer uses the same transactional id.")
    RESOURCE_NOT_FOUND = _row(91, FATAL, "There is no such resource.")
    DUPLICATE_RESOURCE = _row(92, FATAL, "The request names the same resource twice.")
    UNACCEPTABLE_CREDENTIAL = _row(93, FATAL, "The credential does not meet the requirements.")
    INCONSISTENT_VOTER_SET = _row(94, FATAL, "The voter sets do not match.")
    INVALID_UPDATE_VERSION = _row(95, FATAL, "The version to update to is not valid.")
    FEATURE_UPDATE_FAILED = _row(96, FATAL, "The feature could not be updated.")
    PRINCIPAL_DESERIALIZATION_FAILURE = _row(
        97, FATAL, "The forwarded principal could not be read."
    )
    SNAPSHOT_NOT_FOUND = _row(98, FATAL, "There is no such snapshot.")
    POSITION_OUT_OF_RANGE = _row(99, FATAL, "The position lies outside the snapshot.")
    UNKNOWN_TOPIC_ID = _row(100, RETRY, "This broker hosts no topic with that id.")
    DUPLICATE_BROKER_REGISTRATION = _row(101, FATAL, "Another live broker has the same id.")
    BROKER_ID_NOT_REGISTERED = _row(102, FATAL, "No broker is registered with that id.")
    INCONSISTENT_TOPIC_ID = _row(103, RETRY, "The topic id does not match the one in the log.")
    INCONSISTENT_CLUSTER_ID = _row(104, FATAL, "The cluster id is not this cluster's.")
    TRANSACTIONAL_ID_NOT_FOUND = _row(105, FATAL, "The transactional id is unknown.")
    FETCH_SESSION_TOPIC_ID_ERROR = _row(
        106, RETRY, "The fetch session mixes topic ids and topic names."
    )
    INELIGIBLE_REPLICA = _row(
        107, FATAL, "The new in-sync set holds a replica that may not be in it."
    )
    NEW_LEADER_ELECTED = _row(108, FATAL, "The in-sync set changed, and so did the leader.")
    OFFSET_MOVED_TO_TIERED_STORAGE = _row(109, FATAL, "The offset is only in tiered storage.")
    FENCED_MEMBER_EPOCH = _row(110, FATAL, "The member's epoch has been replaced; it must rejoin.")
    UNRELEASED_INSTANCE_ID = _row(111, FATAL, "Another member still holds the group instance id.")
    UNSUPPORTED_ASSIGNOR = _row(112, FATAL, "The coordinator does not offer that assignor.")
    STALE_MEMBER_EPOCH = _row(113, FATAL, "The member must learn its new epoch and retry.")
    MISMATCHED_ENDPOINT_TYPE = _row(
        114, FATAL, "The request was sent to the wrong kind of endpoint."
    )
    UNSUPPORTED_ENDPOINT_TYPE = _row(115, FATAL, "The endpoint type is not supported.")
    UNKNOWN_CONTROLLER_ID = _row(116, FATAL, "The controller id is unknown.")
    UNKNOWN_SUBSCRIPTION_ID = _row(117, FATAL, "The telemetry subscription is outdated.")
    TELEMETRY_TOO_LARGE = _row(118, FATAL, "The telemetry is larger than the broker accepts.")
    INVALID_REGISTRATION = _row(119, FATAL, "The broker registration was rejected.")
    TRANSACTION_ABORTABLE = _row(120, FATAL, "The transaction failed but can be aborted.")
    INVALID_RECORD_STATE = _row(
        121, FATAL, "The record's state does not allow that acknowledgement."
    )
    SHARE_SESSION_NOT_FOUND = _row(122, RETRY, "The share session is unknown.")
    INVALID_SHARE_SESSION_EPOCH = _row(
        123, RETRY, "The share session's epoch is not the expected one."
    )
    FENCED_STATE_EPOCH = _row(124, FATAL, "The share group's state epoch is not the current one.")
    INVALID_VOTER_KEY = _row(125, FATAL, "The voter key does not match the receiver's.")
    DUPLICATE_VOTER = _row(126, FATAL, "The voter is already in the set.")
    VOTER_NOT_FOUND = _row(127, FATAL, "The voter is not in the set.")
    INVALID_REGULAR_EXPRESSION = _row(128, FATAL, "The regular expression is not valid.")
    REBOOTSTRAP_REQUIRED = _row(
        129, FATAL, "The client must start over from its bootstrap servers."
    )
    STREAMS_INVALID_TOPOLOGY = _row(130, FATAL, "The topology is not valid.")
    STREAMS_INVALID_TOPOLOGY_EPOCH = _row(131, FATAL, "The topology epoch is not valid.")
    STREAMS_TOPOLOGY_FENCED = _row(132, FATAL, "The topology epoch is outdated.")
    SHARE_SESSION_LIMIT_REACHED = _row(
        133, RETRY, "The broker has reached its maximum number of share sessions."
    )


def known_code(number: int) -> ErrorCode:
    """The error code that a broker has sent; UNKNOWN_SERVER_ERROR if it is newer than ours."""
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


# BOUND: characters of a text for a client. It may repeat the client's data, and a string on the
# wire has at most 32,767 bytes.
MESSAGE_CHARS_MAX = 2_000


class WireError(Exception):
    """The error ``code`` in the response to a request, or to one partition of it.

    message: what was wrong and what to do, for the client's log; the code's own text when empty.
    What is longer than MESSAGE_CHARS_MAX is cut.
    """

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        self.code = code
        self.message = message or code.message
        if len(self.message) > MESSAGE_CHARS_MAX:
            self.message = self.message[: MESSAGE_CHARS_MAX - 3] + "..."
        super().__init__(f"{code.name}: {self.message}")

    def bare(self) -> WireError:
        """The error without traceback and cause, which keep frames and everything they refer to."""
        self.__cause__ = self.__context__ = None
        return self.with_traceback(None)

    def __reduce__(self) -> tuple[type[WireError], tuple[ErrorCode, str]]:
        return type(self), (self.code, self.message)


class StorageError(Exception):
    """A log directory failed; the handler takes that directory offline, not the broker."""

    def __init__(self, log_dir: str, cause: object) -> None:
        self.log_dir = log_dir
        self.cause = cause
        super().__init__(f"log directory {log_dir} failed: {cause}")

    def __reduce__(self) -> tuple[type[StorageError], tuple[str, object]]:
        return type(self), (self.log_dir, self.cause)


# The resource that is exhausted when a process cannot open or map a file, and the remedy.
SHORTAGES = {
    errno.EMFILE: "raise the limit on open files (ulimit -n, or LimitNOFILE= in a systemd unit)",
    errno.ENFILE: "raise the system's limit on open files (fs.file-max)",
    errno.ENOMEM: "free memory, or raise the limit on memory maps (vm.max_map_count)",
}
# A connection that cannot be accepted for one of these waits in the backlog.
NO_ROOM_TO_ACCEPT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class ShortageError(OSError):
    """A file could not be opened or mapped, because descriptors, maps or memory ran out.

    The disk is well and the file as it was: one request fails, and may be tried again. Only for
    calls that open or map. A write or sync with the same errno has failed like any other.
    """

    def __init__(self, code: int, path: object = None) -> None:
        text = f"{os.strerror(code)}; {SHORTAGES[code]}"
        super().__init__(*((code, text) if path is None else (code, text, path)))

    def __reduce__(self) -> tuple[type[ShortageError], tuple[object, ...]]:
        return type(self), (self.errno, self.filename)


# No space: on the disk, in a quota, or by a limit on the size of files (``ulimit -f``).
FULL_DISK_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def is_full_disk(error: OSError) -> bool:
    """Whether the error disappears when disk space is freed."""
    return error.errno in FULL_DISK_ERRNOS


def may_do_without(error: OSError) -> bool:
    """Whether ``error`` lets an optional file stay unwritten: space or descriptors ran out."""
    return is_full_disk(error) or isinstance(error, ShortageError)


class ConfigError(Exception):
    """A setting has a value that is not allowed; the start or the change is refused.

    allowed: the legal values in words, such as ``an integer from 1 to 2147483647``.
    """

    def __init__(self, key: str, value: object, allowed: str) -> None:
        self.key = key
        self.value = value
        self.allowed = allowed
        super().__init__(f"{key}={value!s} is not valid: expected {allowed}")

    @property
    def client_text(self) -> str:
        """The text for a client. COMPAT: it begins like Kafka's message, which scripts search
        for.
        """
        return f"Invalid value {self.value!s} for configuration {self.key}: expected {self.allowed}"

    def __reduce__(self) -> tuple[type[ConfigError], tuple[str, object, str]]:
        return type(self), (self.key, self.value, self.allowed)


class FileConfigError(ConfigError):
    """One whose text says something about a file: a client that has named it is not told."""


class InvariantError(Exception):
    """A property kbroker itself must keep does not hold.

    Log it and exit: the state in memory cannot be trusted, and the restart reads the disk.
    """
