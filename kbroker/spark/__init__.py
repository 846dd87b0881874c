"""kbroker and Apache Spark: a data source, sinks and jobs over any broker of Kafka's protocol.

Nothing of Spark is imported until it is used.
"""
