"""The client: pushes, consumes and administers over a transport."""
