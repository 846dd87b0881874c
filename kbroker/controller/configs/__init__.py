"""Settings of brokers, topics, users and clients."""
