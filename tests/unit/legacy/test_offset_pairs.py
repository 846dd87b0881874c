"""The file of old and new offsets."""

from __future__ import annotations

import pytest

from kbroker.legacy.offset_pairs import OffsetPairs, pair

pytestmark = pytest.mark.unit


def test_old_offset_has_a_new_one(tmp_path):
    path = tmp_path / "t-0.offsets"
    path.write_bytes(pair(100, 0) + pair(112, 1) + pair(300, 5) + pair(400, 6))

    pairs = OffsetPairs(str(path))

    asked = {0: 0, 100: 0, 101: 1, 112: 1, 113: 5, 300: 5, 400: 6, 401: None, -1: 0}
    assert {old: pairs.find(old) for old in asked} == asked
    assert (len(pairs), pairs[2]) == (4, (300, 5))
    with pytest.raises(IndexError):
        pairs[4]
    pairs.close()


def test_empty_file_and_one_that_is_cut(tmp_path):
    path = tmp_path / "t-0.offsets"
    path.write_bytes(b"")
    assert OffsetPairs(str(path)).find(0) is None
    path.write_bytes(pair(0, 0)[:-1])
    with pytest.raises(ValueError, match="does not consist of pairs"):
        OffsetPairs(str(path))
