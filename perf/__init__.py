"""Benchmarks: every tool here loads kbroker and Apache Kafka alike, through the same client."""
