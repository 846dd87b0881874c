"""Errors that users of the source are meant to read, without the traceback of a Python worker.

Spark sends the text of an error from the worker to the driver: a traceback of the source, at whose
end the sentence is. A worker that is about to end with an error of ours tells Spark to leave the
traceback out, so that the sentence comes first; any other error keeps it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from kbroker.client.errors import ClientError
from kbroker.spark.offsets import DataLossError
from kbroker.spark.options.option_values import OptionError

# Used by PySpark when it writes the error, in the process that raised it.
_HIDE = "SPARK_HIDE_TRACEBACK"


@contextmanager
def told_plainly() -> Iterator[None]:
    """Wraps what Spark calls in a Python worker; also a decorator."""
    try:
        yield
    except (OptionError, DataLossError, ClientError):
        os.environ[_HIDE] = "1"
        raise
