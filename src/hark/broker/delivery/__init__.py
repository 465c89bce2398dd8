"""Delivery: who is told of work, when, and what each consumer that waits gets."""
