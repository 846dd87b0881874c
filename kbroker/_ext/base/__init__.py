"""What every extension may use: bytes of the wire, tables, checksums, numbers of Kafka."""
