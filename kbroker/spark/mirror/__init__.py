"""``kbroker-spark-mirror``: topics of one cluster into another, whole batches, each record once.

``partition_copy`` is what a task does with a partition; ``cli`` the command.
"""
