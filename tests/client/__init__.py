"""The client: its transports, calls and verbs, against real servers."""
