"""Processes that have lost sight of the log, as if they had slept."""

from __future__ import annotations

import pytest

from hark.engine.s3.log.sight import Sight


def lose_sight_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who next asks how old its sight is has none."""
    is_stale, sights = Sight.is_stale.fget, [1]  # type: ignore[attr-defined]

    def ask(sight: Sight) -> bool:
        if sights:
            sights.pop()
            sight.lose()
        return bool(is_stale(sight))

    monkeypatch.setattr(Sight, "is_stale", property(ask))
