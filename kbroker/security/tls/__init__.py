"""TLS of listeners and of connections to other brokers: stores, contexts, names in certificates."""
