"""Delivery: notifies waiting consumers of work, and passes them messages."""
