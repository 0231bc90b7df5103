"""`kvspec redact`: make a record that can be shared."""

from __future__ import annotations

from pathlib import Path

import click

from kvcheck.cli._options import oracle_option, output_option, profile_option, record_argument
from kvcheck.cli._support import say
from kvcheck.discovery import find_implementation
from kvcheck.records.redact import redact
from kvcheck.records.select import named_record
from kvspec.profile import find_profile


@click.command()
@record_argument
@output_option("File for the redacted record.", required=True)
@oracle_option("Implementation used to recompute the hashes.")
@profile_option("Policies of a record that names none")
def command(record: Path, output: Path, oracle: str, profile: str) -> int:
    """Replace the tokens and names in a record so that it can be shared.

    Tokens are renumbered: only the lengths of prompts remain, and which of them share a beginning
    and how long it is; after that, equal tokens get different numbers. Salts, adapters, items and
    request ids are numbered in order of appearance. Hashes are recomputed under a new random seed;
    free text is dropped. The redacted record passes or fails a replay as before.

    Still readable: the configuration with its layer names, the implementation that was recorded,
    every call with its counts and block ids, lengths, which requests share a salt, an adapter or an
    item, and the positions of items in prompts.

    RECORD is a file, or a shipped record: life_of_blocks or identities.
    """
    policy = find_profile(profile).policy
    footer = redact(named_record(record), output, find_implementation(oracle), policy=policy)
    say(f"{output}: {footer.num_ops} operations, redacted")
    return 0
