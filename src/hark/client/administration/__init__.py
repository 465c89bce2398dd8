"""Administration of a server, and the types of its responses."""
