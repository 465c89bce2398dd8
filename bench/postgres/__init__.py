"""The rows and limits that only a store in PostgreSQL has."""
