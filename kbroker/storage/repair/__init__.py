"""Recovery after an unclean stop, also of interrupted swaps."""
