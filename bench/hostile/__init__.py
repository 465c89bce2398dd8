"""Clients that attack a server before anybody has asked them for a token."""
