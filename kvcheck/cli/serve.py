"""`kvspec serve`: serve an implementation over standard input and output."""

from __future__ import annotations

import click

from kvcheck.discovery import find_served
from kvcheck.remote.server import serve_stdio


@click.command()
@click.argument("name", metavar="IMPL")
def command(name: str) -> int:
    """Serve an implementation over stdin and stdout, for `--impl cmd:…`.

    IMPL is an installed name such as `kvref`, or package.module:factory. spec/protocol.md describes
    the protocol; the client's first message selects CBOR frames or JSON lines. Standard output
    carries only the protocol: prints of the implementation are redirected to stderr.

    Exit code 0: the client closed standard input. 2: the input was not in the protocol.
    """
    return serve_stdio(lambda: find_served(name))
