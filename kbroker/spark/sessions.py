"""A session with the fastest configs for reading and writing through Python."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING

from kbroker.spark.java import provide_java
from kbroker.spark.needed_pyspark import unusable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

JVM_OPTIONS = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
"""For ``spark.driver.extraJavaOptions`` (local mode) and ``spark.executor.extraJavaOptions``: makes
reading Arrow batches a fifth faster, by disabling checks that Spark makes itself.
"""
UNIX_SOCKETS = "spark.python.unix.domain.socket.enabled"
# The value of that setting that Spark passes to its Python workers.
_TOLD = "PYTHON_UNIX_DOMAIN_ENABLED"
# With fewer records, a read is over before anybody would have seen a hint.
_HINT_RECORDS = 1_000_000


def builder(app: str | None = None) -> SparkSession.Builder:
    """``SparkSession.builder`` with the settings that docs/spark.md advises; others may be added,
    and win. Workers are the interpreter that calls this, unless ``PYSPARK_PYTHON`` names another.

    A JVM that spark-submit has started takes no options any more.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as err:
        raise ImportError(unusable(err)) from err

    provide_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    made = SparkSession.builder
    if app is not None:
        made = made.appName(app)
    for who in ("driver", "executor"):
        made = made.config(f"spark.{who}.extraJavaOptions", JVM_OPTIONS)
    return made.config(UNIX_SOCKETS, "true")


def hint_at_builder(records: int) -> None:
    """Warn, when a large read is planned, about a session without these settings."""
    if records >= _HINT_RECORDS and os.environ.get(_TOLD, "").lower() != "true":
        logger.warning(
            "this session transfers rows more slowly than it could: create it with "
            "kbroker.spark.builder(), or see Read in docs/spark.md for its settings"
        )
