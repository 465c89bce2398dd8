"""Who watches keys, and how they hear of changes: each holds versions, never values."""
