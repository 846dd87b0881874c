"""``kbroker-spark-mirror``: copies topics to another cluster, whole batches, each record once.

``partition_copy`` is what a task does with a partition; ``cli`` the command.
"""
