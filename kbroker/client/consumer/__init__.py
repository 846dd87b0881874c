"""The group consumer: partitions are read by the thread that polls, a group is kept by another.

``kafka_consumer`` is what a user calls; docs/decisions/0025-consumer.md says which thread owns
what.
"""
