"""Tests that ``make sanitize`` cannot run."""

import os

import pytest

# Its allocator keeps what is freed for a while, and each byte has a shadow.
measures_memory = pytest.mark.skipif(
    "libasan" in os.environ.get("LD_PRELOAD", ""), reason="the sanitizer needs memory of its own"
)
