"""Consuming messages: receive, hold leases, call handlers and settle."""
