"""The version of Hark, in the one place that the build, the server and the CLI read."""

__version__ = "0.1.0"
