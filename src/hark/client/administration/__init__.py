"""What administrators ask of a server, and what it answers."""
