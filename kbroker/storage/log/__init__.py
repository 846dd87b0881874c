"""The log of one partition, as the io worker that owns it has it open."""
