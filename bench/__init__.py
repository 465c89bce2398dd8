"""The benchmark of Hark: load, the machine's own limits, and what must hold. Run it with `scripts/bench`."""
