"""Commands of Kafka 0.8 that later releases no longer have, and the import of 0.7."""
