"""Records as columns in Arrow's format, and back."""
