"""Settings: hark.toml, then HARK_* variables, then flags; one typed tree, joined field by field.

    loaded = load({"port": 7000}, os.environ)
    loaded.settings.port, loaded.sources["port"]  # (7000, "--port")

`tree.py` and `worker.py` say what settings there are, `table.py` lists them, `load.py` reads them.
"""

from hark.settings.addresses import Address, peer_addresses
from hark.settings.load import Loaded, load
from hark.settings.table import SETTINGS, Setting, shown
from hark.settings.tree import Batching, Encryption, Fallback, Limits, Peer, Pop, Postgres, Queue, Retention, Settings
from hark.settings.worker import Polling, Worker

__all__ = [
    "SETTINGS",
    "Address",
    "Batching",
    "Encryption",
    "Fallback",
    "Limits",
    "Loaded",
    "Peer",
    "Polling",
    "Pop",
    "Postgres",
    "Queue",
    "Retention",
    "Setting",
    "Settings",
    "Worker",
    "load",
    "peer_addresses",
    "shown",
]
