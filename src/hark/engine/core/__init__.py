"""What SQLite and S3 share: state in memory over tables, and the verbs on it."""
