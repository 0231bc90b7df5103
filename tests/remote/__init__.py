"""Implementations in other processes: the protocol, both ends of it, and an example server."""
