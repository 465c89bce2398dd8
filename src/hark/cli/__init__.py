"""The command line: `hark serve`, and the commands that use a server over HTTP."""

from hark.cli.app import app


def main() -> None:
    """Run the command line."""
    app(prog_name="hark")


__all__ = ["app", "main"]
