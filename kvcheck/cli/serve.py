"""`kvspec serve`: an implementation over standard input and output, for checkers elsewhere."""

from __future__ import annotations

import click

from kvcheck.discovery import find_implementation
from kvcheck.remote.server import serve_stdio


@click.command()
@click.argument("name", metavar="IMPL")
def command(name: str) -> int:
    """Offer an implementation over stdin and stdout, for `--impl cmd:…`.

    IMPL is an installed name such as `kvref`, or package.module:factory. The protocol is described
    in spec/protocol.md; the client's first message decides between CBOR frames and JSON lines.
    Standard output carries the protocol only: what the implementation prints goes to stderr.

    Exit code 0: the client closed standard input. 2: what came was not the protocol.
    """
    return serve_stdio(lambda: find_implementation(name))
