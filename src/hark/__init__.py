"""Hark: a durable message queue that one command starts."""

from hark._version import __version__

__all__ = ["__version__"]
