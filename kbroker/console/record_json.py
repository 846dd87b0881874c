"""Records as JSON: text where it is UTF-8, else base64; decoded by a schema registry, if any."""

from __future__ import annotations

import base64
import codecs
from collections.abc import Iterable, Mapping
from typing import Any

from kbroker.console.answers import Data, Decoded, Record
from kbroker.console.decoding import Decoding
from kbroker.console.reading import FoundRecord
from kbroker.schemas.framing import KEY_HEADER, VALUE_HEADER, Framed, framed


def records_json(
    matches: Iterable[FoundRecord], bytes_max: int, decoding: Decoding | None
) -> list[Record]:
    """bytes_max: of key, value and each header, and characters of what is decoded; the rest is
    cut.
    """
    rows = list(matches)
    records = [_record_json(row, bytes_max) for row in rows]
    if decoding is not None:
        _decode(rows, records, bytes_max, decoding)
    return records


def _decode(
    rows: Iterable[FoundRecord], records: Iterable[Record], chars_max: int, decoding: Decoding
) -> None:
    values: list[Framed] = []
    places: list[Data] = []
    for (record, _), shown in zip(rows, records, strict=True):
        for data, place, header in (
            (record.key, shown["key"], KEY_HEADER),
            (record.value, shown["value"], VALUE_HEADER),
        ):
            value = None if data is None else framed(bytes(data), record.headers, header)
            if value is not None and place is not None:
                values.append(value)
                places.append(place)
    for place, answer in zip(places, decoding.decode(values), strict=True):
        place["decoded"] = _decoded(answer, chars_max)


def _decoded(answer: Mapping[str, Any], chars_max: int) -> Decoded:
    if "error" in answer:
        return {"schema": answer["schema"], "error": answer["error"]}
    text = answer["text"]
    return {
        "schema": answer["schema"],
        "format": answer["format"],
        "text": text[:chars_max],
        "cut": answer["cut"] or len(text) > chars_max,
    }


def _record_json(row: FoundRecord, bytes_max: int) -> Record:
    record = row.record
    return {
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": None if record.timestamp < 0 else record.timestamp,
        "key": data_json(record.key, bytes_max),
        "value": data_json(record.value, bytes_max),
        "headers": [
            {"name": data_json(name, bytes_max), "value": data_json(value, bytes_max)}
            for name, value in record.headers
        ],
        "transaction": row.transaction,
    }


def data_json(data: bytes | None, bytes_max: int) -> Data | None:
    """size: of the whole. A null is None."""
    if data is None:
        return None
    shown = bytes(data[:bytes_max])
    document: Data = {"size": len(data), "cut": len(data) > len(shown)}
    try:
        # The last character may be cut in the middle.
        document["text"] = codecs.getincrementaldecoder("utf-8")().decode(
            shown, not document["cut"]
        )
    except UnicodeDecodeError:
        document["base64"] = base64.b64encode(shown).decode()
    return document
