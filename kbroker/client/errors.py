"""The errors that calls of the client raise.

All are ``ClientError`` and can be pickled, because they travel from executors to drivers.
``retriable`` says that the same call may succeed later; the client has already retried it until its
deadline.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kbroker.errors import ErrorCode, known_code


class ClientError(Exception):
    """code: the error code of the protocol, None if it did not come from a broker. name: of the
    code or class.
    """

    code: ErrorCode | None = None
    retriable = False

    @property
    def name(self) -> str:
        return self.code.name if self.code is not None else type(self).__name__


def as_error(error: BaseException) -> Exception:
    """For whoever waits for what a worker thread does: itself, or ``as_client_error``."""
    return error if isinstance(error, Exception) else as_client_error(error)


def as_client_error(error: BaseException) -> ClientError:
    """What ended a call in a worker thread, for whoever waits for its result: sys.exit() of a
    user's code, for instance, ends no thread.
    """
    if isinstance(error, ClientError):
        return error
    made = ClientError(f"{type(error).__name__}: {error}")
    made.__cause__ = error
    return made


class RejectedError(ClientError):
    """A broker responded with an error.

    what: the request in words, such as ``produce to t-0``. message: the broker's own words, if any.
    """

    def __init__(self, code: int, what: str, message: str | None = None) -> None:
        self.code = known_code(code)
        self.what = what
        self.message = message
        self.retriable = self.code.retriable
        super().__init__(f"{what}: {self.code.name}: {message or self.code.message}")

    def __reduce__(self) -> tuple[Any, ...]:
        assert self.code is not None
        return type(self), (int(self.code), self.what, self.message)


class Timeout(ClientError):
    """A deadline has passed. waited_for: what did not happen. last: the last error before that."""

    code = ErrorCode(7)
    retriable = True

    def __init__(self, waited_for: str, seconds: float, last: str = "") -> None:
        self.waited_for = waited_for
        self.seconds = seconds
        self.last = last
        because = f"; last: {last}" if last else ""
        how_long = f"waited {seconds:.3g} s for" if seconds else "the deadline passed before"
        super().__init__(f"{how_long} {waited_for}{because}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.waited_for, self.seconds, self.last)


class UnreachableError(ClientError):
    """No broker could be reached. tried: address -> reason, as text."""

    code = ErrorCode(13)
    retriable = True
    who = "no broker could"

    def __init__(self, tried: Mapping[str, str], seconds: float = 0.0) -> None:
        self.tried = dict(tried)
        self.seconds = seconds
        listed = "; ".join(f"{address}: {why}" for address, why in self.tried.items())
        within = f" within {seconds:.3g} s" if seconds else ""
        super().__init__(f"{self.who} be reached{within}: {listed}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.tried, self.seconds)


class ConnectionLost(ClientError):
    """A connection failed or was closed before the response. address: ``host:port``."""

    code = ErrorCode(13)
    retriable = True

    def __init__(self, address: str, why: str) -> None:
        self.address = address
        self.why = why
        super().__init__(f"{address}: {why}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.address, self.why)


class ProtocolViolation(ConnectionLost):
    """A broker sent something that is not a response to the request; the connection was closed.

    passing: it has spoken Kafka before on that connection, so it is worth another attempt.
    """

    def __init__(self, address: str, why: str, passing: bool = False) -> None:
        super().__init__(address, why)
        self.retriable = passing

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.address, self.why, self.retriable)


class AuthenticationFailed(ClientError):
    """SASL or TLS rejected this client, or this client rejected the broker. Not retried."""

    code = ErrorCode(58)

    def __init__(self, address: str, why: str) -> None:
        self.address = address
        self.why = why
        super().__init__(f"{address}: {why}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.address, self.why)


class UnsupportedByBroker(ClientError):
    """The broker supports no version of an API that this client supports. what: the API."""

    code = ErrorCode(35)

    def __init__(self, address: str, what: str) -> None:
        self.address = address
        self.what = what
        super().__init__(f"{address}: the broker supports no {what} that this client supports")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.address, self.what)


class OffsetOutOfRange(ClientError):
    """The requested offset is not in the log: deleted by retention, or not written yet.

    wanted: the first offset asked for. log_start, log_end: what the log holds, end exclusive.
    """

    code = ErrorCode(1)

    def __init__(
        self, topic: str, partition: int, wanted: int, log_start: int, log_end: int
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.wanted = wanted
        self.log_start = log_start
        self.log_end = log_end
        super().__init__(
            f"{topic}-{partition}: offset {wanted} is not in the log, "
            f"which holds [{log_start}, {log_end})"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (
            self.topic,
            self.partition,
            self.wanted,
            self.log_start,
            self.log_end,
        )


class TopicChanged(ClientError):
    """A topic was deleted, or deleted and recreated, while it was being read or written."""

    code = ErrorCode(103)

    def __init__(self, topic: str, why: str) -> None:
        self.topic = topic
        self.why = why
        super().__init__(f"topic {topic} {why}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.topic, self.why)


class CorruptRecords(ClientError):
    """Fetched records break their format: a wrong checksum, lengths that do not add up, ..."""

    code = ErrorCode(2)

    def __init__(self, topic: str, partition: int, offset: int, why: str) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.why = why
        super().__init__(f"{topic}-{partition}: the records at offset {offset} are corrupt: {why}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.topic, self.partition, self.offset, self.why)


class SettingRefused(ClientError, ValueError):
    """A config that is invalid or not supported by this client. advice: what to write instead."""

    code = ErrorCode(40)

    def __init__(self, setting: str, advice: str) -> None:
        self.setting = setting
        self.advice = advice
        super().__init__(f"{setting}: {advice}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.setting, self.advice)


class BufferExhausted(Timeout):
    """There was no memory for a record: ``buffer.memory`` is in use by what is not acknowledged."""

    def __init__(self, size: int, buffer_bytes: int, waited_ms: int) -> None:
        self.size = size
        self.buffer_bytes = buffer_bytes
        self.waited_ms = waited_ms
        what = f"{size} bytes of buffer.memory, {buffer_bytes}, which brokers do not acknowledge"
        super().__init__(what, waited_ms / 1000)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.size, self.buffer_bytes, self.waited_ms)


class RecordTooLarge(ClientError, ValueError):
    """A record is larger than the setting allows."""

    code = ErrorCode(10)

    def __init__(self, size: int, limit: int, setting: str) -> None:
        self.size = size
        self.limit = limit
        self.setting = setting
        super().__init__(f"a record takes {size} bytes, and {setting} is {limit}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.size, self.limit, self.setting)


class NoSuchPartition(ClientError, ValueError):
    """A record was sent to a partition that its topic does not have."""

    code = ErrorCode(3)

    def __init__(self, topic: str, partition: int, partitions: int) -> None:
        self.topic = topic
        self.partition = partition
        self.partitions = partitions
        super().__init__(f"topic {topic} has partitions 0 to {partitions - 1}, and not {partition}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.topic, self.partition, self.partitions)


class SerializationFailed(ClientError, ValueError):
    """A serializer, a partitioner or an interceptor raised an error for a record, its cause."""

    code = ErrorCode(42)


class UnsupportedHost(ClientError):
    """The program has replaced the threads of Python. library: by which. instead: what to call."""

    def __init__(self, library: str, instead: str) -> None:
        self.library, self.instead = library, instead
        super().__init__(
            f"{library} has replaced Python's threads, which this client needs: call {instead}, or "
            "use the client in a process of its own"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.library, self.instead)


class ClientClosed(ClientError):
    """The client is closed, or is a copy in a forked process."""


class TransactionState(ClientError):
    """A call does not fit the state of the transaction, or a record was sent in one that was
    aborted.
    """

    code = ErrorCode(48)


class UnreadableRecord(CorruptRecords):
    """A consumer cannot read a record; its position stays there.

    offset: of that record. next_offset: seek there to continue behind it, or behind its batch if
    the whole of that cannot be read.
    """

    def __init__(self, topic: str, partition: int, offset: int, next_offset: int, why: str) -> None:
        super().__init__(topic, partition, offset, why)
        self.next_offset = next_offset

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.topic, self.partition, self.offset, self.next_offset, self.why)


class DeserializationFailed(UnreadableRecord):
    """A deserializer raised an error for a record, its cause."""


class NoOffsetForPartition(ClientError):
    """Partitions have no committed offset, and ``auto.offset.reset`` is none."""

    def __init__(self, partitions: Iterable[tuple[str, int]]) -> None:
        self.partitions = sorted(tuple(one) for one in partitions)
        named = ", ".join(f"{topic}-{partition}" for topic, partition in self.partitions)
        super().__init__(
            f"{named}: there is no committed offset, and auto.offset.reset is none: seek to one"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.partitions,)


class LogTruncated(OffsetOutOfRange):
    """Records that were read are not in the log any more: a leader without them was elected.

    wanted: the position. log_end: where the logs part, -1 if the leader cannot tell.
    """

    code = ErrorCode(1)


class TopicReplaced(OffsetOutOfRange):
    """The topic was deleted and created again: the position was one of the former topic."""

    def __init__(
        self, topic: str, partition: int, wanted: int, log_start: int, log_end: int
    ) -> None:
        super().__init__(topic, partition, wanted, log_start, log_end)
        what = f"{topic}-{partition}: the topic was deleted and created again"
        self.args = (f"{what}: offset {wanted} is of the former one",)


class CommitFailed(RejectedError):
    """The member has lost its partitions to others of its group before its commit: what it has read
    since its last one is read again there.
    """

    def __init__(self, code: int, what: str, message: str | None = None) -> None:
        super().__init__(code, what, message)
        self.retriable = False


class WakeupError(ClientError):
    """``wakeup`` was called. Nothing was lost, and the call may be repeated."""

    retriable = True


class ConsumerState(ClientError):
    """A call does not fit the state of the consumer, or another thread is in one."""
