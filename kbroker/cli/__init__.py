"""The programs behind the commands: brokers, verbs for people, Kafka's tools."""
