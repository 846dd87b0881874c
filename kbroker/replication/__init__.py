"""The roles of this broker in its partitions, and how its logs follow their leaders."""
