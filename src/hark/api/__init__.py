"""The HTTP API, described once for the server, the client and the commands: types, operations and queue options."""
