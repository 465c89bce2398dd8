"""The client for programs without an event loop: the same names, with blocking calls.

    import hark.sync

    with hark.sync.connect("http://localhost:6632") as client:
        client.queue("orders").push({"id": 1})
        for message in client.queue("orders").group("billing").messages():
            with message:
                charge(message.data)

The async client does the work, on an event loop in a separate thread. Any number of threads can share a client.
"""

from hark.client.handle import SyncTaskHandle
from hark.sync.client import BufferedQueue, Client, Consumption, Messages, Queue, connect
from hark.sync.parts import Message

__all__ = ["BufferedQueue", "Client", "Consumption", "Message", "Messages", "Queue", "SyncTaskHandle", "connect"]
