"""The route of the server settings."""

from __future__ import annotations

from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from hark._version import __version__
from hark.http.answers import status as answers
from hark.http.routes.requests import reply, settings_of
from hark.http.routes.table import Reach, Table, admin
from hark.settings import SETTINGS, shown


async def show_settings(request: Request) -> Response:
    """List settings. Returns every setting of the server with its value. Secrets are hidden."""
    settings = settings_of(request)
    answer: answers.ShownSettings = {
        "version": __version__,
        "engine": shown(settings, "engine") or f"sqlite:///{Path(settings.data) / 'hark.db'}",
        "settings": [
            {"name": name, "value": shown(settings, name), "meaning": setting.meaning}
            for name, setting in SETTINGS.items()
        ],
    }
    return reply(answer)


TABLE: Table = {
    "/api/v1/system/settings": {"GET": admin(show_settings, Reach.SERVER, answer=answers.ShownSettings)},
}
