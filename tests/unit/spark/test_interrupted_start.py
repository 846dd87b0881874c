"""Ctrl-C while Spark starts."""

import logging
import signal

import pytest

from kbroker.spark.direct import _interrupted_after, _is_not_of_py4j

pytestmark = pytest.mark.unit


def test_interrupt_counts_once_the_start_is_over():
    """A JVM whose start is interrupted by PySpark stays behind, and waits forever."""
    before = signal.getsignal(signal.SIGINT)
    is_started = False

    with pytest.raises(KeyboardInterrupt), _interrupted_after():
        signal.raise_signal(signal.SIGINT)
        is_started = True

    assert is_started
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(
    ("path", "is_told"), [("/x/py4j/java_gateway.py", False), ("/x/a.py", True)]
)
def test_what_py4j_was_doing_is_not_told(path, is_told):
    record = logging.LogRecord("root", logging.INFO, path, 1, "", None, None)

    assert _is_not_of_py4j(record) == is_told


def test_handler_of_a_new_session_stays():
    before = signal.getsignal(signal.SIGINT)
    try:
        with _interrupted_after():
            signal.signal(signal.SIGINT, signal.SIG_IGN)

        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
