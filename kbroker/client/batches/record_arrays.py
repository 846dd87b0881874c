"""Many records as arrays of numpy: what ``poll_columns`` returns and ``send_many`` takes.

numpy is imported by the functions that need it: a client without arrays starts without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    from kbroker._ext.client.record_reader import RecordColumns


class Fields:
    """Keys or values as parts of one buffer.

    Field ``n`` is ``buffer[starts[n] : starts[n] + sizes[n]]``, and null where the size is -1.
    buffer: an array of bytes, or anything with a buffer. starts, sizes: integers, of the same
    number. As a sequence, it makes an object for each field.
    """

    __slots__ = ("buffer", "sizes", "starts")

    def __init__(self, buffer: Any, starts: ArrayLike, sizes: ArrayLike) -> None:
        self.buffer = buffer
        self.starts = starts
        self.sizes = sizes

    @classmethod
    def of(cls, fields: Any) -> Fields:
        """COPY: bytes and None, one after the other in a new buffer."""
        import numpy as np

        given = list(fields)
        sizes = np.array([-1 if one is None else len(one) for one in given], np.int32)
        ends = np.cumsum(np.maximum(sizes, 0), dtype=np.int64)
        buffer = np.frombuffer(b"".join(one for one in given if one is not None), np.uint8)
        return cls(buffer, ends - np.maximum(sizes, 0), sizes)

    def __len__(self) -> int:
        return len(self.sizes)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> bytes | None:
        start, size = int(self.starts[index]), int(self.sizes[index])  # type: ignore[index, arg-type]
        return None if size < 0 else bytes(memoryview(self.buffer)[start : start + size])

    def __iter__(self) -> Iterator[bytes | None]:
        return (self[index] for index in range(len(self)))


class RecordArrays:
    """The records of ``RecordColumns`` as arrays, which must not be changed.

    offsets, timestamps: of int64; a timestamp is in milliseconds since 1970, -1 without one. keys:
    None if they were left out. The buffer of keys and values is what was received, or a copy of
    the decompressed batches, and stays in memory as long as an array that refers to it.
    """

    __slots__ = ("keys", "offsets", "timestamps", "values")

    def __init__(
        self,
        offsets: NDArray[np.int64],
        timestamps: NDArray[np.int64],
        keys: Fields | None,
        values: Fields,
    ) -> None:
        self.offsets = offsets
        self.timestamps = timestamps
        self.keys = keys
        self.values = values

    def __len__(self) -> int:
        return len(self.offsets)


def arrays_of(columns: RecordColumns) -> RecordArrays:
    """Without a copy; of columns that have positions."""
    import numpy as np

    buffer = np.frombuffer(columns.buffer, np.uint8)

    def fields(starts: memoryview[int], sizes: memoryview[int]) -> Fields:
        return Fields(buffer, np.frombuffer(starts, np.int64), np.frombuffer(sizes, np.int32))

    keys = None
    if columns.key_starts is not None and columns.key_sizes is not None:
        keys = fields(columns.key_starts, columns.key_sizes)
    return RecordArrays(
        np.frombuffer(columns.offsets, np.int64),
        np.frombuffer(columns.timestamps, np.int64),
        keys,
        fields(columns.value_starts, columns.value_sizes),
    )


class Parts:
    """``Fields`` as the producer's extension takes them: contiguous arrays of int64 and int32."""

    __slots__ = ("buffer", "sizes", "starts")

    def __init__(
        self, buffer: memoryview, starts: NDArray[np.int64], sizes: NDArray[np.int32]
    ) -> None:
        self.buffer = buffer
        self.starts = starts
        self.sizes = sizes

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, some: slice) -> Parts:
        return Parts(self.buffer, self.starts[some], self.sizes[some])


def parts_of(given: Fields) -> Parts:
    """Raises TypeError for arrays that are not of integers, ValueError for what is no position."""
    import numpy as np

    starts = _integers("starts", given.starts, np.int64)
    sizes = _integers("sizes", given.sizes, np.int32)
    if len(starts) != len(sizes):
        raise ValueError(f"{len(starts)} starts for {len(sizes)} sizes")
    return Parts(memoryview(given.buffer).cast("B"), starts, sizes)


def both_parts_of(values: Fields, keys: Any) -> tuple[Parts, Parts | None]:
    """keys: ``Fields``, bytes and None, or None."""
    if keys is None:
        return parts_of(values), None
    return parts_of(values), parts_of(keys if isinstance(keys, Fields) else Fields.of(keys))


def timestamps_of(given: Any, count: int) -> Any:
    """A timestamp for each of so many records, if there is more than one for all."""
    if not hasattr(given, "__len__"):
        return given
    import numpy as np

    timestamps = _integers("timestamps", given, np.int64)
    if len(timestamps) != count:
        raise ValueError(f"{len(timestamps)} timestamps for {count} values")
    return timestamps


def _integers(what: str, given: Any, kind: type) -> Any:
    import numpy as np

    array = np.asarray(given)
    if array.ndim != 1:
        raise ValueError(f"{what} have {array.ndim} dimensions, not 1")
    if array.dtype.kind not in "iu" and len(array):
        raise TypeError(f"{what} are of {array.dtype}, not of integers")
    if array.dtype != kind and len(array):
        bounds = np.iinfo(kind)
        if not (bounds.min <= int(array.min()) and int(array.max()) <= bounds.max):
            raise ValueError(f"{what} do not fit {np.dtype(kind)}")
    return np.ascontiguousarray(array, kind)


def slices_of(
    values: Parts, keys: Parts | None, overhead: int, bytes_max: int, count_max: int
) -> Iterator[tuple[int, int, int]]:
    """(from, to, bytes) of records in pieces; a larger record is alone. overhead: of a record."""
    import numpy as np

    sizes = np.maximum(values.sizes, 0).astype(np.int64) + overhead
    if keys is not None:
        sizes += np.maximum(keys.sizes, 0)
    ends = np.cumsum(sizes)
    at = before = 0
    while at < len(values):
        after = int(np.searchsorted(ends, before + bytes_max, "right"))
        after = min(max(after, at + 1), at + count_max, len(values))
        yield at, after, int(ends[after - 1]) - before
        at, before = after, int(ends[after - 1])
