"""What stands in front of every route: who asks, from where, what they may, and what is written down about it."""
