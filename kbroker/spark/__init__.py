"""kbroker and Apache Spark: a data source, sinks and jobs over any broker of Kafka's protocol.

    spark.read.format("kbroker").option("kafka.bootstrap.servers", "host:9092") \\
        .option("subscribe", "articles").load()

The format needs no registration where the package is installed: Spark finds ``pyspark_kbroker``.
``register`` does it where Spark did not. Nothing of Spark is imported before it is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from kbroker.spark.java import provide_java
from kbroker.spark.needed_pyspark import unusable
from kbroker.spark.sessions import JVM_OPTIONS, builder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "FORMAT",
    "JVM_OPTIONS",
    "builder",
    "install_kafka_alias",
    "provide_java",
    "read_stream",
    "register",
]

FORMAT = "kbroker"
_ALIAS = "kafka"


def register(spark: SparkSession) -> None:
    """Make ``format("kbroker")`` known to a session whose Python did not find it.

    A session without ``PYSPARK_PYTHON`` takes the first ``python3`` of the path. On this machine
    that becomes the interpreter that runs this, which has the package. Raises RuntimeError where a
    cluster's executors would need it: paths on other machines are unknown here. With Spark Connect
    it is the server's Python that must have the package.
    """
    from kbroker.spark.source import KbrokerDataSource
    from kbroker.spark.workers_python import use_this_python

    if not _is_of_connect(spark):
        use_this_python(spark.sparkContext)
    spark.dataSource.register(KbrokerDataSource)


def _is_of_connect(spark: Any) -> bool:
    """Whether a session is a client of Spark Connect, which has no JVM."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def install_kafka_alias() -> None:
    """Let ``format("kafka")`` mean kbroker in this Python process, for jobs that cannot change.

    Spark reserves the name, so it is the readers' and writers' ``format`` that is replaced, also
    those of Spark Connect, if its client is installed. SQL (``USING kafka``) is not reached. A
    batch that is written without a mode is appended, as by Spark's connector. May be called again.
    """
    for owner in _readers_and_writers():
        original = owner.format
        if not getattr(original, "of_kbroker", False):
            owner.format = _aliased(original)


def _readers_and_writers() -> list[Any]:
    """Raises ImportError without PySpark."""
    classes: list[Any] = []
    failures = []
    for place in ("pyspark.sql", "pyspark.sql.connect"):
        try:
            batch = importlib.import_module(f"{place}.readwriter")
            streaming = importlib.import_module(f"{place}.streaming.readwriter")
        except ImportError as err:
            # Without the packages of Connect, or of the JVM in a client of Connect alone.
            failures.append(err)
            continue
        classes += [batch.DataFrameReader, batch.DataFrameWriter]
        classes += [streaming.DataStreamReader, streaming.DataStreamWriter]
    if not classes:
        raise ImportError(unusable(failures[0])) from failures[0]
    return classes


def _appending(writer: Any) -> Any:
    """Spark's default mode is one that no Python data source supports."""
    java = getattr(writer, "_jwrite", None)
    has_none = (
        writer._write.mode is None if java is None else str(java.curmode()) == "ErrorIfExists"
    )
    return writer.mode("append") if has_none else writer


def _aliased(original: Any) -> Any:
    def format_or_alias(self: Any, source: str) -> Any:
        if source.lower() != _ALIAS:
            return original(self, source)
        made = original(self, FORMAT)
        return _appending(made) if type(made).__name__ == "DataFrameWriter" else made

    format_or_alias.__doc__ = original.__doc__
    format_or_alias.of_kbroker = True  # type: ignore[attr-defined]
    return format_or_alias


def read_stream(
    spark: SparkSession,
    bootstrap: str,
    topics: str | list[str],
    *,
    checkpoint: str | None = None,
    columns: str | None = None,
    **options: object,
) -> DataFrame:
    """A stream of topics; the same as ``spark.readStream.format("kbroker")`` with its options.

    checkpoint: the checkpointLocation of the query, so that its first offsets are kept there.
    columns: such as ``"value binary, offset long"``, where not all are needed. options: as in
    ``option(...)``; where a name has a dot, write ``**{"kafka.isolation.level": "..."}``.
    """
    reader = spark.readStream.format(FORMAT).option("kafka.bootstrap.servers", bootstrap)
    reader = reader.option("subscribe", topics if isinstance(topics, str) else ",".join(topics))
    if checkpoint is not None:
        reader = reader.option("checkpointLocation", checkpoint)
    if columns is not None:
        reader = reader.schema(columns)
    for name, value in options.items():
        reader = reader.option(name, value)  # type: ignore[arg-type]
    return reader.load()
