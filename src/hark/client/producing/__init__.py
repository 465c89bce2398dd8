"""Producing messages: build, batch, buffer and push them, and commit them in transactions."""
