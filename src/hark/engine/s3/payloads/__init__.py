"""Payloads: they stay in the records that brought them."""
