"""Peers: the other servers on the same store, told by UDP where there may be work.

`peers.py` sends and hears, `gathering.py` joins what is sent within a few milliseconds, `datagrams.py` turns hints into
signed bytes and back, `senders.py` notices repeated ones, `directory.py` knows where the others are.
"""

from hark.broker.peers.directory import Directory
from hark.broker.peers.peers import Peers

__all__ = ["Directory", "Peers"]
