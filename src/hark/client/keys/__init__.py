"""The key-value store: entries, and those who watch them."""
