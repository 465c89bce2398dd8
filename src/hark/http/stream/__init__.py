"""Streams over HTTP: messages as they come, by SSE and by WebSocket."""
