"""How ``kafka-console-consumer`` prints records, by the names of Kafka's classes."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from kbroker.cli.kafka.deserializers import deserializer

if TYPE_CHECKING:
    from kbroker._ext.client.consumer_record import ConsumerRecord

_TIMESTAMP_TYPES = {0: "CreateTime", 1: "LogAppendTime"}
Formatter = Callable[["ConsumerRecord"], bytes]
Read = Callable[[bytes], bytes] | None


class DefaultFormatter:
    """Timestamp, partition, offset, epoch, headers, key and value, those that ``print.X`` says."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        def shows(name: str, default: bool = False) -> bool:
            text = settings.get(f"print.{name}")
            return default if text is None else text.strip().lower() == "true"

        def text(name: str, default: str) -> bytes:
            return settings.get(name, default).encode()

        self._columns = [
            column
            for name, column in (
                ("timestamp", self._timestamp),
                ("partition", lambda record: b"Partition:%d" % record.partition),
                ("offset", lambda record: b"Offset:%d" % record.offset),
                ("delivery", lambda record: b"Delivery:NOT_PRESENT"),
                ("epoch", lambda record: b"Epoch:NOT_PRESENT"),
                ("headers", self._headers),
                ("key", self._key),
                ("value", self._value),
            )
            if shows(name, name == "value")
        ]
        self._separator = text("key.separator", "\t")
        self._line = text("line.separator", "\n")
        self._header_separator = text("headers.separator", ",")
        self._null = text("null.literal", "null")
        self._read_key = _read(settings, "key")
        self._read_value = _read(settings, "value")
        self._read_header = _read(settings, "headers")

    def __call__(self, record: ConsumerRecord) -> bytes:
        if not self._columns:
            return b""
        return self._separator.join([column(record) for column in self._columns]) + self._line

    @staticmethod
    def _timestamp(record: ConsumerRecord) -> bytes:
        name = _TIMESTAMP_TYPES.get(record.timestamp_type)
        return b"NO_TIMESTAMP" if name is None else f"{name}:{record.timestamp}".encode()

    def _field(self, read: Read, data: bytes | None) -> bytes:
        present = self._null if data is None else data
        return present if read is None else read(present)

    def _headers(self, record: ConsumerRecord) -> bytes:
        parts = [
            name.encode() + b":" + self._field(self._read_header, value)
            for name, value in record.headers
        ]
        return self._header_separator.join(parts) if parts else b"NO_HEADERS"

    def _key(self, record: ConsumerRecord) -> bytes:
        return self._field(self._read_key, record.key)

    def _value(self, record: ConsumerRecord) -> bytes:
        return self._field(self._read_value, record.value)


def _read(settings: Mapping[str, str], field: str) -> Read:
    name = settings.get(f"{field}.deserializer")
    if name is None:
        return None
    try:
        return deserializer(name)
    except KeyError:
        print(f"ERROR there is no deserializer {name} here", file=sys.stderr)
        return None


def _of_coordinator(topic: str, *numbers: int) -> Callable[[Mapping[str, str]], Formatter]:
    """Records of an internal topic as JSON; of the types with these numbers, others are left
    out.
    """

    def make(settings: Mapping[str, str]) -> Formatter:
        from kbroker.cli.kafka.message_json import compact, decoded
        from kbroker.coordinator.records import offsets_topic, transaction_topic
        from kbroker.coordinator.records.codec import UnknownRecordError
        from kbroker.protocol.codec import DecodeError

        types = {"offsets": offsets_topic.RECORDS, "transactions": transaction_topic.RECORDS}[topic]

        def show(record: ConsumerRecord) -> bytes:
            if record.key is None:
                return b""
            try:
                decoded_record = decoded(types, record.key, record.value)
            except UnknownRecordError:  # of a newer broker
                return b""
            except DecodeError as error:
                raise ValueError(
                    f"Could not read record at offset {record.offset} due to {error}"
                ) from error
            if decoded_record.number not in numbers:
                return b""
            value = (
                None
                if decoded_record.value is None
                else {"version": decoded_record.version, "data": decoded_record.value}
            )
            key = {"type": decoded_record.number, "data": decoded_record.key}
            return compact({"key": key, "value": value}).encode()

        return show

    return make


def _none(settings: Mapping[str, str]) -> Formatter:
    return lambda record: b""


_FORMATTERS: dict[str, Callable[[Mapping[str, str]], Formatter]] = {
    "DefaultMessageFormatter": DefaultFormatter,
    "GroupMetadataMessageFormatter": _of_coordinator("offsets", 2),
    "NoOpMessageFormatter": _none,
    "OffsetsMessageFormatter": _of_coordinator("offsets", 0, 1),
    "TransactionLogMessageFormatter": _of_coordinator("transactions", 0),
}


def formatter(name: str, settings: Mapping[str, str]) -> Formatter:
    """Raises KeyError for one that is not known."""
    return _FORMATTERS[re.split(r"[.$]", name)[-1]](settings)
