"""The routes of the /api/v1 part, by theme: each module has a table from path and method to operation."""
