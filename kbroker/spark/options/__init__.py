"""Options of the data source: which there are, what they may be, and what was given."""
