"""The new producer: records are gathered in batches, which a thread of its own sends.

``kafka_producer`` is what a user calls; docs/decisions/0024-producer.md says which thread owns
what.
"""
