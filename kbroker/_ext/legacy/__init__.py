"""Messages of formats 0 and of Kafka 0.7, for the clients and the import of that time."""
