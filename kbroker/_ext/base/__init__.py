"""What every extension may use: wire primitives, tables, checksums, Kafka's codes and keys."""
