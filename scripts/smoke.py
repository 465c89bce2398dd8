"""A smoke set for an environment: a server on SQLite with JWT and encryption is used by commands and by clients.

It needs nothing but Hark with its extras; `scripts/lowest` runs it on the lowest versions of all dependencies.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import pkgutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_HARK = (sys.executable, "-W", "error::DeprecationWarning:hark", "-m", "hark")
_SECRET = "s" * 32


def import_everything() -> None:
    """Import each module of Hark, except those that need pytest."""
    import hark

    for module in pkgutil.walk_packages(hark.__path__, "hark."):
        if not module.name.endswith("__main__") and not module.name.startswith("hark.testing"):
            importlib.import_module(module.name)


def make_jwt() -> str:
    """Return a JWT that the server accepts."""
    import jwt

    claims = {"sub": "smoke", "role": "admin", "exp": int(time.time()) + 600, "iss": "smoke", "aud": "hark"}
    return jwt.encode(claims, _SECRET, algorithm="HS256")


async def use(url: str, token: str) -> None:
    """Push, pop, settle, and consume over HTTP and a WebSocket."""
    import hark

    for address in (url, url.replace("http://", "ws://")):
        async with hark.connect(address, token=token) as client:
            queue = client.queue(f"smoke-{address[:2]}")
            await queue.push({"id": 1})
            seen: list[object] = []

            async def handle(message: hark.Message, seen: list[object] = seen) -> None:
                seen.append(message.data)

            await queue.each().limit(1).consume(handle)
            assert seen == [{"id": 1}], seen


def run(*arguments: str, environment: dict[str, str]) -> str:
    """Run a command of Hark and return what it prints."""
    done = subprocess.run(
        [*_HARK, *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, (arguments, done.stdout, done.stderr)
    return done.stdout


def serve(directory: str, environment: dict[str, str]) -> tuple[subprocess.Popen[str], str]:
    """Start a server and return it with its address."""
    server = subprocess.Popen(
        [*_HARK, "serve", "--port", "0", "--data", directory], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    line = server.stdout.readline()
    assert line.startswith("Hark "), line
    return server, line.split()[-1]


def main() -> None:
    """Run the smoke set."""
    import_everything()
    with tempfile.TemporaryDirectory() as directory:
        settings = {
            "HARK_ENCRYPTION_KEY": "ab" * 32,
            "HARK_AUTH_JWT_ENABLED": "true",
            "HARK_AUTH_JWT_SECRET": _SECRET,
            "HARK_AUTH_JWT_ISSUER": "smoke",
            "HARK_AUTH_JWT_AUDIENCE": "hark",
        }
        environment = {"PATH": os.environ["PATH"], "HOME": directory, **settings}
        server, url = serve(str(Path(directory) / "data"), environment)
        try:
            token = make_jwt()
            asyncio.run(use(url, token))
            client = {**environment, "HARK_URL": url, "HARK_TOKEN": token}
            run("queue", "create", "secrets", "--set", "encryptionEnabled=true", environment=client)
            run("push", "secrets", '{"card": 1}', environment=client)
            assert "card" in run("pop", "secrets", environment=client)
            assert "secrets" in run("queue", "list", environment=client)
            run("explain", "--help", environment=client)
            import httpx

            metrics = httpx.get(f"{url}/metrics", headers={"Authorization": f"Bearer {token}"}, trust_env=False)
            assert "hark_pushed_messages_total 3" in metrics.text, metrics.text[:300]
        finally:
            server.terminate()
            assert server.wait(30) == 0
    print("smoke set passed")


if __name__ == "__main__":
    main()
