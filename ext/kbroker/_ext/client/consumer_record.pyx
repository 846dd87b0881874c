"""The records that a consumer returns, an object each."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, uint8_t

cimport cython

from kbroker._ext.record.record_cursor cimport next_header

cdef enum:
    WITHOUT_TYPE = -1


@cython.freelist(1024)
cdef class ConsumerRecord:
    """A record of a partition.

    timestamp: in milliseconds since 1970, -1 without one; of the producer if timestamp_type is 0, of the broker if it
    is 1. headers: (name, value) pairs. leader_epoch: of its batch, -1 if unknown. Sizes are in bytes before
    deserialization, -1 for null. Cannot be changed.
    """

    def __init__(
        self, str topic not None, int partition, long long offset, value=None, key=None, headers=(), *,
        long long timestamp=-1, int timestamp_type=WITHOUT_TYPE, int leader_epoch=-1, int serialized_key_size=-1,
        int serialized_value_size=-1,
    ):
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.value = value
        self.key = key
        self._headers = tuple(headers)
        self.timestamp = timestamp
        self.timestamp_type = timestamp_type
        self.leader_epoch = leader_epoch
        self.serialized_key_size = serialized_key_size
        self.serialized_value_size = serialized_value_size

    @property
    def headers(self) -> tuple:
        """(name, value) of each header, in their order; a value is bytes or None."""
        if self._headers is None:
            return ()
        if type(self._headers) is bytes:
            self._headers = decoded_headers(self._headers, self._header_count)
        return self._headers

    def __repr__(self) -> str:
        return (
            f"ConsumerRecord(topic={self.topic!r}, partition={self.partition}, offset={self.offset}, "
            f"timestamp={self.timestamp}, key={self.key!r}, value={self.value!r}, headers={self.headers!r})"
        )

    def __eq__(self, other) -> bool:
        if not isinstance(other, ConsumerRecord):
            return NotImplemented
        return self._fields() == (<ConsumerRecord>other)._fields()

    __hash__ = None

    def _fields(self) -> tuple:
        return (
            self.topic, self.partition, self.offset, self.value, self.key, self.headers, self.timestamp,
            self.timestamp_type, self.leader_epoch, self.serialized_key_size, self.serialized_value_size,
        )

    def __reduce__(self):
        return _record_of, self._fields()


def _record_of(topic, partition, offset, value, key, headers, timestamp, kind, epoch, key_size, value_size):
    return ConsumerRecord(
        topic, partition, offset, value, key, headers, timestamp=timestamp, timestamp_type=kind, leader_epoch=epoch,
        serialized_key_size=key_size, serialized_value_size=value_size,
    )


# The headers in bytes that were checked before.
cdef tuple decoded_headers(bytes encoded, int32_t count):
    cdef:
        const uint8_t* p = <const uint8_t*>PyBytes_AS_STRING(encoded)
        const uint8_t* end = p + PyBytes_GET_SIZE(encoded)
        const uint8_t* key
        const uint8_t* value
        int32_t key_size, value_size
        list found = []
    while count > 0 and next_header(&p, end, &key, &key_size, &value, &value_size):
        # COMPAT: as in Java, bytes that are not UTF-8 are replaced.
        name = key[:key_size].decode("utf-8", "replace")
        found.append((name, None if value_size < 0 else <bytes>value[:value_size]))
        count -= 1
    return tuple(found)
