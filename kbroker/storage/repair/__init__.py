"""After an unclean stop: what each file is worth, and swaps that were interrupted."""
