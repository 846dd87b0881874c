"""Record formats of the internal topics, byte for byte Kafka's, and how they are coded."""
