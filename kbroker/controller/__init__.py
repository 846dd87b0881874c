"""The controller: brokers, topics, partition states and configs. The process is in ``workers``."""
