"""Settings: hark.toml, then HARK_* variables, then flags, merged field by field into one typed tree.

    loaded = load({"port": 7000}, os.environ)
    loaded.settings.port, loaded.sources["port"]  # (7000, "--port")

`tree.py` and `sections.py` define the settings; `load.py` lists and loads them.
"""

from hark.settings.load import SETTINGS, Loaded, load, shown
from hark.settings.sections import Address, Audit, Auth, Cors, Polling, Tls, Worker, peer_addresses
from hark.settings.tree import (
    Batching,
    Delivery,
    Encryption,
    Fallback,
    Limits,
    LogFormat,
    Otel,
    Peer,
    Queue,
    Settings,
)

__all__ = [
    "SETTINGS",
    "Address",
    "Audit",
    "Auth",
    "Batching",
    "Cors",
    "Delivery",
    "Encryption",
    "Fallback",
    "Limits",
    "Loaded",
    "LogFormat",
    "Otel",
    "Peer",
    "Polling",
    "Queue",
    "Settings",
    "Tls",
    "Worker",
    "load",
    "peer_addresses",
    "shown",
]
