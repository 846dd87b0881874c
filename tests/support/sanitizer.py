"""What ``make sanitize`` cannot test."""

import os

import pytest

SANITIZED = "libasan" in os.environ.get("LD_PRELOAD", "")

# Its allocator keeps what is freed for a while, and each byte has a shadow.
measures_memory = pytest.mark.skipif(SANITIZED, reason="the sanitizer needs memory of its own")
