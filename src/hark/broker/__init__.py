"""The broker: batching, waiting, sealing and upkeep between the HTTP layer and an engine."""

from hark.broker.broker import Broker

__all__ = ["Broker"]
