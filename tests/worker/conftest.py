"""As in the tests of the client, no test leaves a session open."""

from tests.client.conftest import sessions

__all__ = ["sessions"]
