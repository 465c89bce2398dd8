"""Print the lowest version of each dependency that pyproject.toml allows, as constraints for pip."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

_BOUND = re.compile(r"^([A-Za-z0-9_.-]+)(?:\[[^]]*\])?>=([0-9.]+)")
_EXTRAS = ("encryption", "jwt", "otel", "postgres", "reload", "s3")


def constraints() -> list[str]:
    """Return the constraints."""
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
    wanted = list(project["dependencies"])
    for extra in _EXTRAS:
        wanted += project["optional-dependencies"][extra]
    found = (_BOUND.match(one) for one in wanted)
    return sorted({f"{match[1]}=={match[2]}" for match in found if match is not None})


if __name__ == "__main__":
    print("\n".join(constraints()))
