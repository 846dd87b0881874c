"""Record batches of all formats: read, checked, converted, filtered."""
