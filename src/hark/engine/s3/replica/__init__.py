"""The replica: the folded state in a local database, and who may change it."""
