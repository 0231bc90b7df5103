"""kvfast refines kvref: which check discharges which part of which action, and what it assumes.

Modules of `proofs` say in `ASSUMES` and `GUARANTEES` what they take for granted and what they show;
of other checks `OTHERS` says it. A part is discharged by a guarantee, an assumption by one of
somebody else, or it is in `TRUSTED`. `python -m tests.regenerate refinement` writes
proofs/REFINEMENT.md of that.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.source import ROOT

PAGE = "proofs/REFINEMENT.md"
HEAD = Path(__file__).parent / "refinement.md"
"""What the page says before its tables, written by hand."""

PROVED, CONFIRMED, EXPLORED, SAMPLED = "proved", "contract", "explored", "sampled"


@dataclass(frozen=True)
class Source:
    """A check: where it stands, how strong it is, what it assumes and shows."""

    path: str
    how: str
    assumes: tuple[str, ...]
    guarantees: tuple[str, ...]


OTHERS = (
    Source(
        "kvcheck/explore",
        EXPLORED,
        (),
        ("every state and answer is the same in small configurations",),
    ),
    Source(
        "tests/lockstep/test_small_lists.py",
        EXPLORED,
        (),
        ("both take and release the same blocks in every small list",),
    ),
    Source(
        "tests/lockstep",
        SAMPLED,
        (),
        (
            "answers and snapshots are the same after random calls and steps",
            "hashes are the same bytes in both",
        ),
    ),
    Source(
        "tests/machines/test_twins.py",
        SAMPLED,
        (),
        ("snapshots, events and statistics are the same after random stories",),
    ),
    Source("tests/contract", SAMPLED, (), (
        "both refuse the same hits, slots and types",
        "arguments are as the rules allow",
        "hits carry the keys of their places",
        "sizes are multiples as a configuration demands",
        "there are less than 2^31 blocks",
    )),
    Source("tests/kvfast", SAMPLED, (), (
        "the compiled build does as the uncompiled one",
        "half of the slots are empty",
        "kvfast's arrays are lists of numbers",
    )),
    Source("spec/kvspec/invariants.py", SAMPLED, (), (
        "no block is twice among hits",
        "a block that is put into the queue is not in it",
    )),
    Source("tests/kvfast/test_requests.py", SAMPLED, (), ("requests keep what they are given",)),
)  # fmt: skip

HYPOTHESIS = "the hypothesis of the induction: snapshots are equal before the call"
TRUSTED: Mapping[str, str] = {
    "no two texts have one hash": "of SHA-256; of xxHash only among tenants that trust each other",
    "besides full attention at most one group drops a block, a window only one of the"
    " alignment": "a condition: beyond it only small caches and samples compare the twins",
    "both see the same blocks free, in use and cached": HYPOTHESIS,
    "both let the same states wait": HYPOTHESIS,
    "a request fits an idle pool": "a condition of KV-LIVE-1",
}
"""What nobody discharges, and why it is taken."""

SAMPLES = "answers and snapshots are the same after random calls and steps"
EVERYWHERE = (
    "every state and answer is the same in small configurations",
    SAMPLES,
    "the compiled build does as the uncompiled one",
)
"""What speaks of every action."""

ACTIONS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "allocate_slots": {
        "arguments": ("both refuse the same counts, ids of blocks and tokens",
                      "both refuse the same hits, slots and types"),
        "granted, refused, or refused by the gate": (
            "both refuse or grant the same calls, and cache, remove and need at the same numbers",),
        "the need": ("both need the same number of blocks for the same demand",
                     "an allocation takes what its need counts, and makes the slots"),
        "which blocks fall out": (
            "both skip the same blocks, and count the same caps and runs",
            "what is skipped is read by no token to come"),
        "taking hits": ("hits are copied to their places and touched from what is skipped on",
                        "both take and release the same blocks in every small list"),
        "taking new blocks": (
            "the ring is the free queue, and each operation does what the rule says",
            "one call on a pool of three blocks ends in the same snapshot"),
        "which blocks are cached": ("both hand the same blocks to the cache",),
        "in mode align, which states move": (
            "both take and release the same blocks in every small list",),
    },
    "find hits": {
        "each type": ("each type's look-up answers its longest hit",),
        "several groups": ("the hit of several groups is the longest common one",),
        "under a key": ("a search finds the entry that was added first under a key, and no other",),
        "statistics of it": (
            "snapshots, events and statistics are the same after random stories",),
    },
    "touch": {
        "references and the queue": (
            "the ring is the free queue, and each operation does what the rule says",
            "one call on a pool of three blocks ends in the same snapshot"),
    },
    "cache_blocks": {
        "which blocks": ("both hand the same blocks to the cache",),
        "registering one": ("one call on a pool of three blocks ends in the same snapshot",
                            "a search finds the entry that was added first under a key, and no"
                            " other"),
        "registering runs": (SAMPLES,),
    },
    "cache_partial_block": {
        "the entry": ("one call on a pool of three blocks ends in the same snapshot",),
        "its bounds": (SAMPLES,),
    },
    "evict_blocks": {
        "the keys of one block": (
            "one call on a pool of three blocks ends in the same snapshot",
            "the same removals are told of one call on a pool of three blocks"),
        "eviction of runs": (SAMPLES,),
    },
    "withdraw": {
        "the keys of its blocks": (
            "one call on a pool of three blocks ends in the same snapshot",),
        "which blocks, and who holds them": (SAMPLES,),
    },
    "reset_prefix_cache": {
        "when it may": (SAMPLES,),
        "all keys": (SAMPLES,),
    },
    "remove_skipped_blocks": {
        "which blocks": ("both skip the same blocks, and count the same caps and runs",),
        "their release": ("the ring is the free queue, and each operation does what the rule says",
                          "both take and release the same blocks in every small list"),
    },
    "free, pop_blocks_for_free, free_blocks": {
        "the order": ("the ring is the free queue, and each operation does what the rule says",
                      "both take and release the same blocks in every small list"),
        "references handed out": (SAMPLES,),
    },
    "get_num_blocks_to_allocate": {
        "the number": ("both need the same number of blocks for the same demand",),
    },
    "get_num_common_prefix_blocks": {"the number": (SAMPLES,)},
    "make_request, append": {
        "bytes of keys": ("two different keys never have the same bytes",
                          "heads of values are the shortest"),
        "extra keys": ("extra keys are the same for two items and three blocks",),
        "tokens and chains of hashes": ("requests keep what they are given",
                                        "hashes are the same bytes in both"),
    },
    "events": {
        "Removed": ("the same removals are told of one call on a pool of three blocks",),
        "Stored, and the order": (
            "snapshots, events and statistics are the same after random stories",),
    },
    "statistics": {
        "windows and lives": (
            "snapshots, events and statistics are the same after random stories",),
        "what counts": ("snapshots, events and statistics are the same after random stories",),
    },
    "take_new_block_ids, new_step_starts": {"all": (SAMPLES,)},
    "whole steps": {"as the single calls one after another": (SAMPLES,)},
    "snapshot, restore": {"all": (SAMPLES,)},
}  # fmt: skip
"""The parts of each action, and the guarantees that discharge them."""


EXPLORING = (
    "proofs/code/key_map.py",
    "proofs/code/liveness.py",
    "proofs/code/look_ups.py",
    "proofs/models/formal.py",
)


def how_of(path: str) -> str:
    """How strong a file of `proofs` is."""
    if path.startswith("proofs/code/contracts/"):
        return CONFIRMED
    return EXPLORED if path in EXPLORING else PROVED


def sources(root: Path = ROOT) -> tuple[Source, ...]:
    """All checks that say what they show."""
    found = []
    for path in sorted((root / "proofs").rglob("[!_]*.py")):
        said = declared(path)
        if said:
            name = path.relative_to(root).as_posix()
            assumes, guarantees = said.get("ASSUMES", ()), said.get("GUARANTEES", ())
            found.append(Source(name, how_of(name), assumes, guarantees))
    return (*found, *OTHERS)


def declared(path: Path) -> dict[str, tuple[str, ...]]:
    """`ASSUMES` and `GUARANTEES` of a module, which is not run."""
    found = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        names: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            names = node.targets
        elif isinstance(node, ast.AnnAssign):
            names = [node.target]
        for name in names:
            if ast.unparse(name) in ("ASSUMES", "GUARANTEES"):
                value = node.value  # type: ignore[attr-defined]  # both kinds have one
                found[ast.unparse(name)] = tuple(ast.literal_eval(value))
    return found


def problems(
    checks: Sequence[Source],
    trusted: Mapping[str, str] = TRUSTED,
    actions: Mapping[str, Mapping[str, Sequence[str]]] = ACTIONS,
) -> list[str]:
    """Assumptions and parts that nobody discharges, and what is said for nothing."""
    shown = {each: check for check in checks for each in check.guarantees}
    assumed = {each for check in checks for each in check.assumes}
    parts = {each for action in actions.values() for part in action.values() for each in part}
    circles = [
        f"{check.path}: guarantees its own assumption: {each}"
        for check in checks
        for each in check.assumes
        if each in check.guarantees
    ]
    return [
        *circles,
        *(
            f"{check.path}: nobody discharges: {each}"
            for check in checks
            for each in check.assumes
            if each not in shown and each not in trusted
        ),
        *(f"a part is discharged by nobody: {each}" for each in sorted(parts - shown.keys())),
        *(f"trusted for nothing: {each}" for each in trusted if each not in assumed),
        *(f"trusted, though it is shown: {each}" for each in trusted if each in shown),
        *(f"no such file: {c.path}" for c in checks if not (ROOT / c.path).exists()),
    ]


def by_guarantee(checks: Sequence[Source]) -> dict[str, list[Source]]:
    """Who shows what."""
    found: dict[str, list[Source]] = {}
    for check in checks:
        for each in check.guarantees:
            found.setdefault(each, []).append(check)
    return found


def page() -> str:
    """The whole page."""
    checks = sources()
    lines = [
        HEAD.read_text(encoding="utf-8").rstrip(),
        "",
        *_actions(checks),
        *_assumptions(checks),
    ]
    return "\n".join(lines) + "\n"


def _who(shown: Mapping[str, Sequence[Source]], guarantee: str) -> str:
    return ", ".join(f"{each.how} (`{each.path}`)" for each in shown.get(guarantee, ()))


def _actions(checks: Sequence[Source]) -> Iterator[str]:
    shown = by_guarantee(checks)
    yield "## What discharges each action"
    yield ""
    yield "Of every action, besides what is below:"
    yield ""
    yield from (f"- {each}: {_who(shown, each)}" for each in EVERYWHERE)
    yield ""
    yield "| action | part | what is shown | by |"
    yield "|---|---|---|---|"
    only = 0
    for action, parts in ACTIONS.items():
        for part, guarantees in parts.items():
            hows = {each.how for name in guarantees for each in shown.get(name, ())}
            note = ""
            if hows == {SAMPLED}:
                only += 1
                note = " **only sampled**"
            said = ". ".join(f"{name[0].upper()}{name[1:]}" for name in guarantees)
            by = "; ".join(dict.fromkeys(_who(shown, name) for name in guarantees))
            yield f"| {action} | {part}{note} | {said} | {by} |"
    total = sum(map(len, ACTIONS.values()))
    yield ""
    yield f"{only} of {total} parts are only sampled, beside the small configurations."
    yield ""


def _assumptions(checks: Sequence[Source]) -> Iterator[str]:
    shown = by_guarantee(checks)
    yield "## Assumptions, and who discharges them"
    yield ""
    yield "| assumption | of | discharged by |"
    yield "|---|---|---|"
    users: dict[str, list[str]] = {}
    for check in checks:
        for each in check.assumes:
            users.setdefault(each, []).append(f"`{check.path}`")
    for each in sorted(users):
        by = _who(shown, each) or f"nobody, {TRUSTED[each]}"
        yield f"| {each} | {', '.join(users[each])} | {by} |"
