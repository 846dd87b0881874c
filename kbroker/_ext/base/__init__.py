"""Shared by all extensions: wire primitives, tables, checksums, Kafka's codes and API keys."""
