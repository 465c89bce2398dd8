"""Transports to a server, all with the interface `api.Transport`."""
