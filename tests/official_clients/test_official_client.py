"""The official client, at both versions, works unchanged: every scenario, on every engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import server_on

ROOT = Path(__file__).parents[2]
CLIENTS = Path(sys.prefix) / "queen-clients"
SECONDS = 100
SCENARIOS = 20


@pytest.mark.parametrize("engine", ["memory", "postgres", "s3"])
@pytest.mark.parametrize("version", ["0.15.0", "2.6.0"])
def test_every_scenario_succeeds(version: str, engine: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    folder = CLIENTS / version
    if not folder.is_dir():
        pytest.fail(f"{folder} is missing: run scripts/test, which installs the official clients")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("QUEEN_")}
    store = request.getfixturevalue("postgres_url") if engine == "postgres" else engine
    with server_on(store, tmp_path) as url:
        process = subprocess.run(
            [sys.executable, "-m", "tests.official_clients.scenarios", url, version],
            cwd=ROOT,
            env=environment | {"PYTHONPATH": str(folder)},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    output = f"{process.stdout[-5000:]}\n{process.stderr[-5000:]}"
    assert process.returncode == 0, output
    failures: dict[str, str] = json.loads(process.stdout.strip().rpartition("\n")[2])
    assert len(failures) == SCENARIOS
    assert not any(failures.values()), "\n".join(f"{name}: {text}" for name, text in failures.items() if text)
