"""What `GET /metrics` shows: everything is counted elsewhere, and only read here."""
