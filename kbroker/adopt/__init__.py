"""Moving house: opens data directories of Apache Kafka here, prepares those of kbroker for Kafka.

Runs while no broker does, for ``kbroker-adopt``. docs/moving-house.md is the user's side of it.
"""
