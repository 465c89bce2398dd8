"""The routes below /api/v1, by topic. Each module has a table from path and method to operation."""
