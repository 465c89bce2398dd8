"""The key-value store: entries, atomic writes and watches."""
