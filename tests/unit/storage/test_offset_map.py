"""The map from key hash to offset."""

from __future__ import annotations

import random

import pytest

from kbroker._ext.base.offset_map import ENTRY_BYTES, OffsetMap

pytestmark = pytest.mark.unit


def test_entries_take_24_bytes():
    assert ENTRY_BYTES == 24
    assert OffsetMap(24 * 100, 0.9).limit == 90


@pytest.mark.parametrize("load_factor", [0.3, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("keys_max", [0, 1, 2, 9, 10, 450, 10**12])
def test_map_for_few_keys_is_small_and_holds_them(load_factor, keys_max):
    """A small log does not use memory that only a large one needs."""
    found = OffsetMap(24 * 500, load_factor, keys_max)

    keys = [str(number).encode() for number in range(min(keys_max, int(500 * load_factor) - 1))]
    assert all(found.put_key(key, offset) for offset, key in enumerate(keys))
    assert [found.get_key(key) for key in keys] == list(range(len(keys)))
    assert found.capacity <= min(500, max(keys_max, 1) / load_factor + 2)


@pytest.mark.parametrize("load_factor", [0.5, 0.9, 1.0])
def test_full_map_equals_a_dict(load_factor):
    draw = random.Random(7)
    found, model = OffsetMap(24 * 500, load_factor), {}
    keys = [draw.randbytes(draw.randint(0, 40)) for _ in range(2000)]
    for offset in range(5000):
        key = draw.choice(keys)
        took = found.put_key(key, offset)
        assert took == (key in model or len(model) < found.limit)
        if took:
            model[key] = offset

    assert found.count == len(model) == found.limit
    assert all(found.get_key(key) == model.get(key, -1) for key in keys)


def test_empty_map_has_no_key():
    found = OffsetMap(24 * 10, 0.9)

    assert found.get_key(b"") == -1 and found.latest_offset == -1 and found.count == 0


@pytest.mark.parametrize(("size", "load"), [(0, 0.9), (24, 0.9), (2400, 0.001), (2400, 0.0)])
def test_map_without_room_for_a_key_is_rejected(size, load):
    with pytest.raises(ValueError, match="hold no key"):
        OffsetMap(size, load)
