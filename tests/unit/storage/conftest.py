"""Fixtures for most tests of storage."""

import pytest
from support.storage.log_store import LogStore


@pytest.fixture
def store(tmp_path):
    made = LogStore(tmp_path)
    yield made
    made.stop(clean=False)
