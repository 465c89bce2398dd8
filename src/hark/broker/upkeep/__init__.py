"""Duties that run beside the requests, one file each."""
