"""A checkpoint with few changed lines: as if every line had been read and written."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.storage import checkpoint
from kbroker.storage.checkpoint import CorruptCheckpointError, OffsetCheckpoint, format_checkpoint

pytestmark = pytest.mark.property

# Names that are a prefix or suffix of another's line are what a search may confuse.
KEYS = st.tuples(st.sampled_from(["a", "a-1", "1", "aa", "x.a"]), st.integers(0, 12))
OFFSETS = st.sampled_from([-1, 0, 1, 11, 1 << 62])
ENTRIES = st.dictionaries(KEYS, OFFSETS)
DAMAGE = st.sampled_from(
    [
        b"",
        b"x",
        b"\n",
        b"a 1 5\n",
        b"a 1 5\na 1 6\n",
        b"a 1 x\n",
        b"a  1 5\n",
        b"\xff 0 1\n",
        b" 0 1\n",
    ]
)


def merged(data: bytes | None, *args: object) -> bytes | None:
    with TemporaryDirectory() as directory:
        path = Path(directory) / "c"
        if data is not None:
            path.write_bytes(data)
        OffsetCheckpoint(directory, "c").merge(*args)  # type: ignore[arg-type]
        return path.read_bytes() if path.exists() else None


def looked_up(data: bytes, key: tuple[str, int]) -> object:
    with TemporaryDirectory() as directory:
        (Path(directory) / "c").write_bytes(data)
        try:
            return OffsetCheckpoint(directory, "c").line(key)
        except CorruptCheckpointError:
            return "corrupt"


def line_by_line(function: object, *args: object) -> object:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(checkpoint, "FEW_KEYS", -1)
        patched.setattr(checkpoint, "_SOUND", checkpoint.re.compile(b"(?!)"))
        return function(*args)  # type: ignore[operator]


@given(ENTRIES, DAMAGE, ENTRIES, st.lists(KEYS, max_size=4), st.lists(KEYS, max_size=2))
def test_few_lines_changed_are_as_all_lines_written(entries, damage, values, removed, skipped):
    data = format_checkpoint(entries) + damage

    found = merged(data, values, removed, skipped)

    assert found == line_by_line(merged, data, values, removed, skipped)


@given(ENTRIES, DAMAGE, KEYS)
def test_line_looked_for_is_the_one_that_is_read(entries, damage, key):
    data = format_checkpoint(entries) + damage

    assert looked_up(data, key) == line_by_line(looked_up, data, key)


def test_files_that_are_not_there_or_empty_are_made() -> None:
    assert merged(None, {("t", 1): 5}) == merged(b"", {("t", 1): 5}) == b"0\n1\nt 1 5\n"
    assert merged(None, {}) == b"0\n0\n"
