"""Settings: hark.toml, then HARK_* variables, then flags; one typed tree, joined field by field.

    loaded = load({"port": 7000}, os.environ)
    loaded.settings.port, loaded.sources["port"]  # (7000, "--port")

`tree.py` says what settings there are, `table.py` lists them, `load.py` reads them.
"""

from hark.settings.addresses import Address, peer_addresses
from hark.settings.load import Loaded, load
from hark.settings.table import LATER, SETTINGS, Setting, shown
from hark.settings.tree import Batching, Encryption, Fallback, Limits, Peer, Pop, Postgres, Queue, Retention, Settings

__all__ = [
    "LATER",
    "SETTINGS",
    "Address",
    "Batching",
    "Encryption",
    "Fallback",
    "Limits",
    "Loaded",
    "Peer",
    "Pop",
    "Postgres",
    "Queue",
    "Retention",
    "Setting",
    "Settings",
    "load",
    "peer_addresses",
    "shown",
]
