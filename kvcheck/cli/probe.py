"""`kvspec probe`: check the replies of a server in any language, message by message."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvcheck.cli._options import json_option, oracle_option, verbose_option
from kvcheck.cli._support import fail, output_console, say, write_json
from kvcheck.discovery import find_implementation

if TYPE_CHECKING:
    from kvcheck.tools.probe import Exchange

SHOWN_CHARACTERS = 160


@click.command()
@click.argument("name", metavar="cmd:PROGRAM")
@oracle_option()
@verbose_option
@json_option()
def command(name: str, oracle: str, verbose: bool, json_path: Path | None) -> int:
    """Check a server's replies one message at a time, while it is being written.

    Sends the handshake and a short program with two requests, and compares each reply with the
    reference's. Operations that the server does not support yet are reported, and the program
    continues. When every reply is right, run kvspec check.

    Exit code 0: every reply is right (block ids may differ), 1: some are not, 2: it could not run.
    """
    from kvcheck.remote.client import parse_name
    from kvcheck.tools.probe import OF_NO_CONCERN, probe

    head = name.partition(":")[0]
    if head.partition("+")[0] != "cmd":
        fail(f"{name!r} is not a server; name a program: kvspec probe 'cmd:./server'")
    options = parse_name(name)
    exchanges: list[Exchange] = []
    output = output_console(json_path)
    try:
        for exchange in probe(options, find_implementation(oracle)):
            exchanges.append(exchange)
            say(*lines(exchange, whole=verbose), console=output)
    except OSError as error:
        fail(f"{options.name} can't be started: {error.strerror or error}")
    wrong = [each for each in exchanges if each.verdict not in OF_NO_CONCERN]
    found = [
        {
            "message": dict(each.message),
            "answer": None if each.answer is None else dict(each.answer),
            "verdict": each.verdict.name.lower(),
            "detail": each.detail,
        }
        for each in exchanges
    ]
    write_json(found, json_path)
    say(_last_line(exchanges, wrong, name), console=output)
    return 1 if wrong else 0


def lines(exchange: Exchange, *, whole: bool) -> list[str]:
    """Return lines with a message, its reply and the verdict; after hello also what is offered."""
    limit = None if whole else SHOWN_CHARACTERS
    said = "(none)" if exchange.answer is None else _text(exchange.answer, limit)
    found = f"  {exchange.verdict}" + (f": {exchange.detail}" if exchange.detail else "")
    told = [f"> {_text(exchange.message, limit)}", f"< {said}", found]
    if exchange.message["op"] == "hello" and exchange.answer and "result" in exchange.answer:
        offered = exchange.answer["result"]
        if isinstance(offered, dict):
            for member in ("spec_types", "hash_functions", "features"):
                values = offered.get(member)
                if isinstance(values, list):
                    told.append(f"  {member}: {', '.join(map(str, values)) or 'none'}")
    return told


def _text(message: Mapping[str, Any], limit: int | None) -> str:
    text = json.dumps(message, separators=(",", ":"))
    if limit is None or len(text) <= limit:
        return text
    return f"{text[:limit]} … ({len(text)} characters; -v shows them)"


def _last_line(exchanges: list[Exchange], wrong: list[Exchange], name: str) -> str:
    right = f"{len(exchanges) - len(wrong)} of {len(exchanges)} replies are right"
    if not wrong:
        hello = exchanges[0].answer or {}
        offered = hello["result"]
        option = "--tier " if "offload" in offered and not offered["spec_types"] else ""
        return f"{right}; next: kvspec check {option}'{name}'"
    counts = Counter(each.verdict for each in wrong)
    why = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    first = wrong[0].message
    return f"{right} ({why}); look first at message {first['id']}, {first['op']}"
