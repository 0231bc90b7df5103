"""`kvspec redact`: a record that can be shared."""

from __future__ import annotations

from pathlib import Path

import click

from kvcheck.cli._options import oracle_option, output_option, profile_option, record_argument
from kvcheck.cli._support import output_console
from kvcheck.discovery import find_implementation
from kvcheck.records.redact import redact
from kvcheck.records.select import named_record
from kvspec.profile import find_profile


@click.command()
@record_argument
@output_option("The redacted record.", required=True)
@oracle_option("Who computes the new hashes.")
@profile_option("Policies of a record that names none")
def command(record: Path, output: Path, oracle: str, profile: str) -> int:
    """Make a record whose tokens and names are replaced, to be shared.

    Of tokens only this is kept: which prompts begin alike, how far, and how long they are; behind
    that one token has another number each time. Salts, adapters, items and request ids are numbered
    in the order in which they occur; hashes are computed anew under a new seed, differently in each
    run; free texts are dropped. A replay passes or fails as before. What remains readable: the
    configuration with its layer names, who was recorded, every call with its counts and block ids,
    lengths, which requests share a salt, an adapter or an item, and where in the prompt items are.
    RECORD is a file, or life_of_blocks or identities, which kvspec brings along.

    Exit code 0: written, 2: could not run.
    """
    policy = find_profile(profile).policy
    footer = redact(named_record(record), output, find_implementation(oracle), policy=policy)
    output_console().print(
        f"{output}: {footer.num_ops} operations, redacted", markup=False, soft_wrap=True
    )
    return 0
