"""The metrics of `GET /metrics`. They are counted elsewhere and only read here."""
