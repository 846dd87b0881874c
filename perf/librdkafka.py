"""librdkafka itself, from the confluent-kafka wheel, through ctypes: a thousand records per call.

confluent-kafka's Python producer spends more per record than librdkafka does, and would be what a
benchmark measures. Here a batch of ready-made records is one call, and delivery reports, with the
error of each record, are counted in Cython.
"""

import ctypes
import ctypes.util
from collections.abc import Sequence
from pathlib import Path

import confluent_kafka

from perf.load_generator import DeliveryCounter

ANY_PARTITION = -1
CONF_OK = 0
TYPE_PRODUCER = 0
EVENT_DR = 0x1
EVENT_ERROR = 0x8
EVENT_STATS = 0x40
LOG_NOTHING_BUT_PANIC = 0
QUEUE_FULL = -184


class Message(ctypes.Structure):
    """rd_kafka_message_t."""

    _fields_ = [
        ("err", ctypes.c_int),
        ("rkt", ctypes.c_void_p),
        ("partition", ctypes.c_int32),
        ("payload", ctypes.c_void_p),
        ("len", ctypes.c_size_t),
        ("key", ctypes.c_void_p),
        ("key_len", ctypes.c_size_t),
        ("offset", ctypes.c_int64),
        ("private", ctypes.c_void_p),
    ]


POINTER, SIZE, INT, TEXT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_char_p
SIGNATURES: dict[str, tuple[object, list[object]]] = {
    "conf_new": (POINTER, []),
    "conf_destroy": (None, [POINTER]),
    "conf_set": (INT, [POINTER, TEXT, TEXT, TEXT, SIZE]),
    "conf_set_events": (None, [POINTER, INT]),
    "new": (POINTER, [INT, POINTER, TEXT, SIZE]),
    "destroy": (None, [POINTER]),
    "set_log_level": (None, [POINTER, INT]),
    "topic_new": (POINTER, [POINTER, TEXT, POINTER]),
    "topic_destroy": (None, [POINTER]),
    "produce_batch": (INT, [POINTER, ctypes.c_int32, INT, POINTER, INT]),
    "outq_len": (INT, [POINTER]),
    "queue_get_main": (POINTER, [POINTER]),
    "queue_destroy": (None, [POINTER]),
    "queue_poll": (POINTER, [POINTER, INT]),
    "event_type": (INT, [POINTER]),
    "event_destroy": (None, [POINTER]),
    "event_message_count": (SIZE, [POINTER]),
    "event_message_array": (SIZE, [POINTER, POINTER, SIZE]),
    "event_error_string": (TEXT, [POINTER]),
    "event_stats": (TEXT, [POINTER]),
    "err2str": (TEXT, [INT]),
}


def find_library() -> str:
    """The librdkafka in the wheel, or else the system's. Raises RuntimeError."""
    wheel = Path(confluent_kafka.__file__).parent.parent / "confluent_kafka.libs"
    for found in sorted(wheel.glob("librdkafka-*.so*")):
        return str(found)
    system = ctypes.util.find_library("rdkafka")
    if system is None:
        raise RuntimeError("no librdkafka beside confluent_kafka; use --client confluent")
    return system


def load_library() -> ctypes.CDLL:
    library = ctypes.CDLL(find_library())
    for name, (result, arguments) in SIGNATURES.items():
        function = getattr(library, f"rd_kafka_{name}")
        function.restype, function.argtypes = result, arguments
    return library


class BatchProducer:
    """Produces one fixed set of values to one topic, again and again.

    Not thread-safe; a context manager. The values are not copied: they stay here until ``close``.
    """

    def __init__(self, settings: dict[str, str], topic: str, values: Sequence[bytes]) -> None:
        self.library = load_library()
        latency = ctypes.cast(self.library.rd_kafka_message_latency, ctypes.c_void_p).value
        self.counter = DeliveryCounter(latency or 0)
        self.last_error_text = ""
        self.last_stats = ""
        self._buffers = [ctypes.create_string_buffer(value, len(value)) for value in values]
        self._messages = (Message * len(values))()
        for message, buffer, value in zip(self._messages, self._buffers, values, strict=True):
            message.payload, message.len = ctypes.addressof(buffer), len(value)
        self._reports: ctypes.Array[ctypes.c_void_p] = (ctypes.c_void_p * 1024)()
        self._next = 0
        self._handle = self._create(settings)
        self._topic = self.library.rd_kafka_topic_new(self._handle, topic.encode(), None)
        self._queue = self.library.rd_kafka_queue_get_main(self._handle)

    def _create(self, settings: dict[str, str]) -> int:
        error = ctypes.create_string_buffer(512)
        conf = self.library.rd_kafka_conf_new()
        for key, value in settings.items():
            code = self.library.rd_kafka_conf_set(conf, key.encode(), value.encode(), error, 512)
            if code != CONF_OK:
                self.library.rd_kafka_conf_destroy(conf)
                raise ValueError(error.value.decode())
        self.library.rd_kafka_conf_set_events(conf, EVENT_DR | EVENT_ERROR | EVENT_STATS)
        handle = self.library.rd_kafka_new(TYPE_PRODUCER, conf, error, 512)
        if not handle:
            self.library.rd_kafka_conf_destroy(conf)
            raise ValueError(error.value.decode())
        # It would write a line for each attempt to connect; errors are in last_error_text.
        self.library.rd_kafka_set_log_level(handle, LOG_NOTHING_BUT_PANIC)
        return int(handle)

    def __enter__(self) -> "BatchProducer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def produce(self, count: int, partition: int = ANY_PARTITION) -> int:
        """Queue up to ``count`` records, with the values in turn; returns the number queued.

        Fewer than ``count`` when the values end, or the queue is full: then ``poll`` and go on.
        Raises RuntimeError when librdkafka refuses a record for another reason.
        """
        count = min(count, len(self._messages) - self._next)
        first = ctypes.addressof(self._messages) + self._next * ctypes.sizeof(Message)
        queued = int(self.library.rd_kafka_produce_batch(self._topic, partition, 0, first, count))
        if queued < count:
            for message in self._messages[self._next : self._next + count]:
                if message.err not in (0, QUEUE_FULL):
                    raise RuntimeError(self.error_text(message.err))
        self._next = (self._next + queued) % len(self._messages)
        return queued

    def poll(self, timeout_ms: int) -> None:
        """Count the available delivery reports; wait up to ``timeout_ms`` for the first."""
        while event := self.library.rd_kafka_queue_poll(self._queue, timeout_ms):
            timeout_ms = 0
            kind = self.library.rd_kafka_event_type(event)
            if kind == EVENT_DR:
                self._count_reports(event)
            elif kind == EVENT_ERROR:
                self.last_error_text = self.library.rd_kafka_event_error_string(event).decode()
            elif kind == EVENT_STATS:
                self.last_stats = self.library.rd_kafka_event_stats(event).decode()
            self.library.rd_kafka_event_destroy(event)

    def _count_reports(self, event: int) -> None:
        size = self.library.rd_kafka_event_message_count(event)
        if size > len(self._reports):
            self._reports = (ctypes.c_void_p * size)()
        address = ctypes.addressof(self._reports)
        taken = self.library.rd_kafka_event_message_array(event, address, size)
        self.counter.count(address, taken)

    def pending(self) -> int:
        """Records and reports not yet seen by ``poll``."""
        return int(self.library.rd_kafka_outq_len(self._handle))

    def error_text(self, code: int) -> str:
        return str(self.library.rd_kafka_err2str(code).decode())

    def close(self) -> None:
        """Drops what is still queued."""
        if self._handle:
            self.library.rd_kafka_queue_destroy(self._queue)
            self.library.rd_kafka_topic_destroy(self._topic)
            self.library.rd_kafka_destroy(self._handle)
            self._handle = 0
