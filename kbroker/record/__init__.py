"""Record batches: checking, reading, building and compressing them."""
