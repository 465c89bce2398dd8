"""Clients that attack a server before it asks for a token."""
