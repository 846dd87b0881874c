"""What this broker is to the partitions whose logs it has."""
