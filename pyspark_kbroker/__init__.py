"""Spark looks for top-level modules named ``pyspark_*`` and registers their ``DefaultSource``."""

from kbroker.spark.source import KbrokerDataSource


class DefaultSource(KbrokerDataSource):
    """``format("kbroker")``."""


__all__ = ["DefaultSource"]
