"""The server as a program: it chooses an engine, wires the layers, and runs in one process or in several."""
