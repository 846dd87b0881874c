"""What the controller knows, and what follows from it: nothing here waits, sends or writes."""
