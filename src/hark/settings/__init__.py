"""Settings: hark.toml, then HARK_* variables, then flags; one typed tree, joined field by field.

    loaded = load({"port": 7000}, os.environ)
    loaded.settings.port, loaded.sources["port"]  # (7000, "--port")

`tree.py` says what settings there are, `table.py` lists them, `load.py` reads them.
"""

from hark.settings.load import Loaded, load
from hark.settings.table import LATER, SETTINGS, Setting, shown
from hark.settings.tree import Batching, Encryption, Fallback, Limits, Pop, Postgres, Retention, Settings

__all__ = [
    "LATER",
    "SETTINGS",
    "Batching",
    "Encryption",
    "Fallback",
    "Limits",
    "Loaded",
    "Pop",
    "Postgres",
    "Retention",
    "Setting",
    "Settings",
    "load",
    "shown",
]
