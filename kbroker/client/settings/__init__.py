"""What settings of clients are: rows of tables, and values read by them."""
