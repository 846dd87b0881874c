"""What a client does with records without the GIL."""
