"""Options of the data source: definitions, validation, and given values."""
