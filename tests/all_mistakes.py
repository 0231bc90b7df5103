"""Every mistake on purpose, of whatever part: `python -m tests.all_mistakes [ID or KV-RULE]…`.

Those of kvref are in kvref/mistakes, those of kvfast in kvfast/mistakes, those that both make at
once in tests/kills/in_both.diff. Anything but a manager,
planner or whole step has its mistakes beside the tests that have to find them; here they are listed
as the same value. What a proof or contract plants, `Planted` of proofs/, is not among them.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import click

from kvcheck.mistakes import Mistake
from tests.device.mistakes import TEXTS
from tests.mistakes import in_both, mistakes, of_kvfast


def everything() -> tuple[Mistake, ...]:
    both = (of_kvref for of_kvref, _ in in_both())
    return (
        *mistakes(),
        *of_kvfast(),
        *both,
        *tiers(),
        *fleets(),
        *devices(),
        *models(),
    )


def tiers() -> Iterator[Mistake]:
    """Yield broken host tiers of kvfast."""
    for one in importlib.import_module("tests.tier.test_lockstep").MISTAKES:
        about = " ".join(one.about.split())
        yield Mistake(one.id, one.rules, about, "kvfast", "host tier", one.make)


def fleets() -> Iterator[Mistake]:
    """Yield broken indexes of engines, and broken connections to the engines."""
    for name in ("test_mistakes", "test_wire"):
        for one in importlib.import_module(f"tests.fleet.{name}").MISTAKES:
            yield replace(one, about=" ".join(one.about.split()), kind="fleet")


def devices() -> Iterator[Mistake]:
    """Yield broken operations, kernels, tables and decode steps of kvfast.device."""
    return chain.from_iterable(TEXTS.values())


def models() -> Iterator[Mistake]:
    """Yield mistakes in the formal model."""
    twins = importlib.import_module("proofs.models._formal._twins")
    for one in (*twins.TWINS, *twins.UNFAIR):
        yield _spoken(one, one.name, "spec/tla", "formal model")


def _spoken(found: Any, words: str, origin: str, kind: str) -> Mistake:
    """Make a mistake of words, which also give its id."""
    return Mistake(_id(words), (), _sentence(words), origin, kind, partial(_itself, found))


def _itself(found: Any) -> Any:
    return found


def _id(words: str) -> str:
    return "".join(word.capitalize() for word in words.replace(",", " ").replace(":", " ").split())


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:].rstrip('.')}."


def with_kind(found: Mistake) -> Mistake:
    """Add the kind to the id, so that no two mistakes share one: `TakesOneMore (model)`."""
    return found if found.origin == "kvref" else replace(found, id=f"{found.id} ({found.kind})")


@click.command()
@click.argument("wanted", nargs=-1)
def command(wanted: tuple[str, ...]) -> None:
    """List mistakes: all, or those of these ids and rules."""
    for each in map(with_kind, everything()):
        if not wanted or each.id in wanted or set(wanted) & set(each.rules):
            rules = f" {', '.join(each.rules)}" if each.rules else ""
            click.echo(f"{each.id}{rules}: {each.about} [{each.origin}]")


if __name__ == "__main__":
    command()
