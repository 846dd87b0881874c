"""The batch of an operation equals that of the batch builder. A failure prints its seed."""

from __future__ import annotations

import pytest
from support.running.seeds import seeded

from kbroker._ext.record.plain_batch import build_batch
from kbroker.record.builder import BatchBuilder

pytestmark = pytest.mark.property


def test_batch_of_an_operation_is_what_the_builder_makes() -> None:
    random = seeded()
    for _ in range(200):
        records = [
            (
                random.randbytes(random.choice([0, 1, 63, 64, 300])),
                random.choice([None, b"", random.randbytes(random.choice([1, 64, 9000]))]),
            )
            for _ in range(random.choice([1, 2, 70]))
        ]
        producer = random.choice([(-1, -1), (2**40, 7)])
        builder = BatchBuilder(
            producer_id=producer[0], producer_epoch=producer[1], transactional=producer[0] >= 0
        )
        for key, value in records:
            builder.append(value, key, 1234)

        assert build_batch(records, 1234, *producer) == builder.build()


def test_batch_without_records_or_with_wrong_ones_is_rejected() -> None:
    with pytest.raises(ValueError, match="at least one record"):
        build_batch([], 1)
    with pytest.raises(TypeError):
        build_batch([(None, b"")], 1)  # type: ignore[list-item]
    with pytest.raises(TypeError):
        build_batch([("key", b"")], 1)  # type: ignore[list-item]
