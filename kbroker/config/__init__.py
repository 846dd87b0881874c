"""Settings of brokers and topics: what exists, how text becomes a value, what may change."""
