"""What ``make sanitize`` cannot test, and how long it may take."""

import os

import pytest

SANITIZED = "libasan" in os.environ.get("LD_PRELOAD", "")

# Factor for all time limits of tests: the code runs at a fraction of its speed.
TIME_FACTOR = 5 if SANITIZED else 1

# For programs of ours that a test gives an environment of its own.
ENVIRONMENT = {
    name: os.environ[name]
    for name in ("LD_PRELOAD", "ASAN_OPTIONS", "UBSAN_OPTIONS")
    if name in os.environ
}

# Its allocator keeps what is freed for a while, and each byte has a shadow.
measures_memory = pytest.mark.skipif(SANITIZED, reason="the sanitizer needs memory of its own")
