"""The log of one partition, while its io worker has it open."""
