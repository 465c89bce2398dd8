"""Streaming consumers over HTTP: server-sent events and WebSocket."""
