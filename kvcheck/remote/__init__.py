"""Implementations in other processes and other languages, over standard input and output.

`spec/protocol.md` describes the protocol. `kvcheck.remote.client` is an `Implementation` whose
managers live in a child process, `kvcheck.remote.server` offers any `Implementation` that way.
"""
