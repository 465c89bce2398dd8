"""The Python client and the worker, beside the clients and workers of others."""
