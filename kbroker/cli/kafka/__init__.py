"""Apache Kafka's tools under their names: the same options, output and exit codes, in Python.

``table`` has the names, ``options`` how they are declared and read, ``running`` what all tools do
around their own work. See docs/decisions/0027-kafka-tools.md.
"""
