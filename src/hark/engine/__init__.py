"""Engines keep things: one protocol (`api`), one folder per store."""
