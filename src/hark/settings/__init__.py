"""Settings: hark.toml, then HARK_* variables, then flags, merged field by field into one typed tree.

    loaded = load({"port": 7000}, os.environ)
    loaded.settings.port, loaded.sources["port"]  # (7000, "--port")

`tree.py`, `security.py`, `s3.py` and `worker.py` define the settings, `table.py` lists them, `load.py` loads them.
"""

from hark.settings.addresses import Address, peer_addresses
from hark.settings.load import Loaded, load
from hark.settings.security import Audit, Auth, Cors, Tls
from hark.settings.table import SETTINGS, Setting, shown
from hark.settings.tree import (
    Batching,
    Encryption,
    Fallback,
    Limits,
    LogFormat,
    Otel,
    Peer,
    Pop,
    Postgres,
    Queue,
    Retention,
    Settings,
)
from hark.settings.worker import Polling, Worker

__all__ = [
    "SETTINGS",
    "Address",
    "Audit",
    "Auth",
    "Batching",
    "Cors",
    "Encryption",
    "Fallback",
    "Limits",
    "Loaded",
    "LogFormat",
    "Otel",
    "Peer",
    "Polling",
    "Pop",
    "Postgres",
    "Queue",
    "Retention",
    "Setting",
    "Settings",
    "Tls",
    "Worker",
    "load",
    "peer_addresses",
    "shown",
]
