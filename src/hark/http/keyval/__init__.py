"""The key-value API: work queues and keys under /keyval/api."""
