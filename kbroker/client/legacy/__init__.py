"""What clients of Kafka 0.8 do by ZooKeeper."""
