"""Find where prompts part, and count what another template would hit.

A request *parts* where it first differs from the earlier request that it shares most with. A prompt
is a row of bytes here, as fine as the trace has it: of the text, of tokens, or of ids of runs.
Another template is tried by changing every prompt that has a beginning, and counting again.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from kvcheck.tools.replay.trace import Spelling, TraceRecord
from kvcheck.tools.replay.units import checked_block_size, units_of
from kvcheck.tools.replay.whatif import endless_hits, look_up, lru_hits
from kvspec.errors import InvalidArgumentError

REACH_TOKENS = 1_024
"""The differing text ends at most so many tokens behind a parting; with ids, 64 of them."""
_MOST_TAILS = 64
_SHOWN_BYTES = 400


@dataclass(frozen=True, slots=True)
class Alphabet:
    """The bytes of a prompt: `width` to a symbol, and `run_bytes` to a run of `run` tokens.

    `spell` turns them into text; None where the trace has none.
    """

    width: int
    run_bytes: int
    run: int
    spell: Callable[[bytes], str] | None = None

    def tokens(self, num_bytes: int) -> int:
        """Return the whole tokens in so many bytes."""
        return num_bytes // self.run_bytes * self.run

    def num_bytes(self, tokens: int) -> int:
        """Return the bytes of so many tokens, and of one run at least."""
        return max(1, tokens // self.run) * self.run_bytes


@dataclass(frozen=True, slots=True)
class Prompts:
    """A trace: its requests without their ids, and their prompts in bytes.

    `outputs`: what follows each in its last run and in later ones, as far as it is known.
    """

    alphabet: Alphabet
    records: list[TraceRecord]
    prompts: list[bytes]
    outputs: list[bytes]

    @property
    def tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(record.input_length for record in self.records)


@dataclass(frozen=True, slots=True)
class Parting:
    """A place where prompts part.

    `at_tokens`: the tokens that all share before it. `requests`: those that part there, or later in
    the same block, of `passing` that begin alike and go on. `in_block_tokens`: what they share in
    that block with an earlier request, and do not hit.
    `before`, `ways`: the text in front of it, and what comes in the first requests that differ.
    `filled_tokens`, `last_tokens`: prompt tokens that no longer need to be computed if the text in
    front is filled up to a block, and if the differing text comes last; None if that changes none.
    """

    at_tokens: int
    requests: int
    passing: int
    in_block_tokens: int
    before: str | None
    ways: tuple[str, ...]
    filled_tokens: int | None
    last_tokens: int | None


@dataclass(frozen=True, slots=True)
class Partings:
    """The commonest partings of a trace. `num_blocks`: of the pool; None if it is endless.

    `requests`, `tokens`: of the whole trace. `hit_tokens`: as the prompts are. `parting`,
    `continuing`: requests that part from all earlier ones, and those that have an earlier prompt at
    their beginning or are one. `places`: how many there are in all.
    """

    block_size: int
    num_blocks: int | None
    requests: int
    tokens: int
    hit_tokens: int
    parting: int
    continuing: int
    places: int
    partings: tuple[Parting, ...]


def prompts_of(records: Iterable[TraceRecord], spelling: Callable[[], Spelling | None]) -> Prompts:
    """Read a trace whose ids are as fine as they can be; `spelling` is asked at the end."""
    kept, prompts, outputs, run = [], [], [], 1
    for record in records:
        run = record.run_length
        kept.append(replace(record, hash_ids=()))
        prompts.append(array("I" if run == 1 else "Q", record.hash_ids).tobytes())
        outputs.append(array("I" if run == 1 else "Q", record.output_ids or ()).tobytes())
    spelled, run_bytes = spelling(), 4 if run == 1 else 8
    if spelled is None:
        return Prompts(Alphabet(run_bytes, run_bytes, run), kept, prompts, outputs)
    alphabet = Alphabet(spelled.width, run_bytes, run, spelled.text)
    return Prompts(alphabet, kept, prompts, outputs)


def shared_bytes(one: bytes, other: bytes, width: int) -> int:
    """Return how long both begin alike, in whole symbols."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low - low % width


def shared_with_earlier(prompts: Sequence[bytes], width: int) -> list[int | None]:
    """Return where each prompt parts from all earlier ones; None for one that does not.

    The first does not, nor one that an earlier prompt begins or repeats. In sorted order a prompt
    shares most with a neighbour: from the last request back, each is compared with its neighbours
    among the earlier ones, and taken out.
    """
    order = sorted(range(len(prompts)), key=prompts.__getitem__)
    left, right = dict[int, int](), dict[int, int]()
    shared = dict[int, int]()  # with the next in order
    for one, other in pairwise(order):
        left[other], right[one] = one, other
        shared[one] = shared_bytes(prompts[one], prompts[other], width)
    found: list[int | None] = [None] * len(prompts)
    for number in range(len(prompts) - 1, 0, -1):
        before, after = left.pop(number, None), right.pop(number, None)
        beside = [] if before is None else [(shared[before], before)]
        beside += [] if after is None else [(shared[number], after)]
        most = max(length for length, _ in beside)
        if any(n == most < min(len(prompts[number]), len(prompts[p])) for n, p in beside):
            found[number] = most
        if before is not None and after is not None:
            shared[before] = min(shared[before], shared[number])
            left[after], right[before] = before, after
        elif before is not None:
            del right[before]
        elif after is not None:
            del left[after]
    return found


@dataclass(slots=True)
class _Place:
    """Where requests part behind the same whole blocks: what all share, and the tokens lost."""

    beginning: bytes
    requests: int = 0
    in_block_tokens: int = 0


def _places(prompts: Prompts, block_size: int) -> list[_Place]:
    """Return the places, the commonest first."""
    alphabet, found = prompts.alphabet, dict[bytes, _Place]()
    shared = shared_with_earlier(prompts.prompts, alphabet.width)
    for prompt, at in zip(prompts.prompts, shared, strict=True):
        if at is None:
            continue
        whole = at - at % alphabet.num_bytes(block_size)
        place = found.setdefault(prompt[:whole], _Place(prompt[:at]))
        place.beginning = min(place.beginning, prompt[:at], key=len)
        place.requests += 1
        place.in_block_tokens += alphabet.tokens(at - whole)
    return sorted(found.values(), key=lambda each: (-each.requests, each.beginning))


def partings(
    prompts: Prompts,
    block_size: int | None,
    num_blocks: int | None,
    most: int,
    on_step: Callable[[], None] = lambda: None,
) -> Partings:
    """Return the `most` commonest partings; `on_step` after each. InvalidArgumentError."""
    size = checked_block_size(block_size, prompts.alphabet.run)
    places = _places(prompts, size)
    computed = _computed(prompts, prompts.prompts, size, num_blocks)
    found = []
    for place in places[:most]:
        found.append(_parting(prompts, place, size, num_blocks, computed))
        on_step()
    parting = sum(place.requests for place in places)
    return Partings(
        block_size=size,
        num_blocks=num_blocks,
        requests=len(prompts.records),
        tokens=prompts.tokens,
        hit_tokens=prompts.tokens - computed,
        parting=parting,
        continuing=len(prompts.records) - parting - 1,
        places=len(places),
        partings=tuple(found),
    )


def _parting(
    prompts: Prompts,
    place: _Place,
    block_size: int,
    num_blocks: int | None,
    computed: int,
) -> Parting:
    """Describe one place, and try the other templates there."""
    alphabet, beginning = prompts.alphabet, place.beginning
    at = len(beginning)
    passing = [
        number
        for number, prompt in enumerate(prompts.prompts)
        if len(prompt) > at and prompt.startswith(beginning)
    ]
    anchor = anchor_of([prompts.prompts[n][at:] for n in passing], alphabet, block_size)

    def saved(change: Callable[[bytes], bytes]) -> int | None:
        changed = list(prompts.prompts)
        for number in passing:
            changed[number] = change(changed[number])
        if changed == prompts.prompts:
            return None
        return computed - _computed(prompts, changed, block_size, num_blocks)

    return Parting(
        at_tokens=alphabet.tokens(at),
        requests=place.requests,
        passing=len(passing),
        in_block_tokens=place.in_block_tokens,
        before=_text(alphabet, beginning, at),
        ways=tuple(_ways(prompts, passing, at)),
        filled_tokens=saved(lambda prompt: filled(prompt, at, alphabet, block_size)),
        last_tokens=None if anchor is None else saved(lambda p: put_last(p, at, anchor, alphabet)),
    )


def filled(prompt: bytes, at: int, alphabet: Alphabet, block_size: int) -> bytes:
    """Fill the first `at` bytes of a prompt up to a block."""
    return prompt[:at] + bytes(-at % alphabet.num_bytes(block_size)) + prompt[at:]


def put_last(prompt: bytes, at: int, anchor: bytes, alphabet: Alphabet) -> bytes:
    """Move the bytes from `at` up to the anchor behind all whole runs of the prompt.

    Without an anchor within reach the prompt stays as it is.
    """
    found = prompt.find(anchor, at + alphabet.width, at + _reach(alphabet) + len(anchor))
    while found >= 0 and (found - at) % alphabet.width:
        found = prompt.find(anchor, found + 1, at + _reach(alphabet) + len(anchor))
    end = len(prompt) if alphabet.run == 1 else len(prompt) - alphabet.run_bytes
    if not at < found < end:
        return prompt
    return prompt[:at] + prompt[found:end] + prompt[at:found] + prompt[end:]


def anchor_of(tails: Sequence[bytes], alphabet: Alphabet, block_size: int) -> bytes | None:
    """Return the block of text that most tails have in reach, the first of equal ones.

    At most 64 tails are asked, evenly chosen. None if no two have one in common.
    """
    size, width = alphabet.num_bytes(block_size), alphabet.width
    asked = [tail[: _reach(alphabet) + size] for tail in tails[:: 1 + len(tails) // _MOST_TAILS]]
    windows = [
        [tail[start : start + size] for start in range(width, len(tail) - size + 1, width)]
        for tail in asked
    ]
    counts = Counter(window for each in windows for window in set(each))
    best = max(counts.values(), default=0)
    if best < 2:
        return None
    return next(window for each in windows for window in each if counts[window] == best)


def _reach(alphabet: Alphabet) -> int:
    return alphabet.num_bytes(max(REACH_TOKENS, 64 * alphabet.run if alphabet.run > 1 else 0))


def _ways(prompts: Prompts, passing: Sequence[int], at: int) -> list[str]:
    """Return what comes at a place in the first requests that differ there, at most three texts."""
    if prompts.alphabet.spell is None:
        return []
    starts: dict[bytes, str] = {}
    for number in passing:
        start = prompts.prompts[number][at : at + _SHOWN_BYTES]
        starts.setdefault(start[: prompts.alphabet.width], prompts.alphabet.spell(start))
    return [*starts.values()][:3]


def _text(alphabet: Alphabet, prompt: bytes, end: int) -> str | None:
    start = max(0, end - _SHOWN_BYTES)
    return None if alphabet.spell is None else alphabet.spell(prompt[start - start % 4 : end])


def _computed(
    prompts: Prompts, changed: Sequence[bytes], block_size: int, num_blocks: int | None
) -> int:
    """Count the prompt tokens that are not hit, with these prompts in place of the trace's.

    InvalidArgumentError for a pool that the largest request does not fit in.
    """
    alphabet = prompts.alphabet
    piece = max(block_size, alphabet.run)
    size, names = alphabet.num_bytes(piece), dict[bytes, int]()

    def records() -> Iterable[TraceRecord]:
        all_of_it = zip(prompts.records, changed, prompts.prompts, prompts.outputs, strict=True)
        for record, prompt, old, output in all_of_it:
            added = -((len(old) - len(prompt)) // alphabet.run_bytes) * alphabet.run
            whole, is_known = prompt + output, record.output_ids is not None
            parts = (whole[start : start + size] for start in range(0, len(whole), size))
            ids = tuple(names.setdefault(part, len(names)) for part in parts)
            length = record.input_length + added
            own = -(-length // piece)
            yield replace(
                record,
                input_length=length,
                hash_ids=ids[:own],
                output_ids=ids[own:] if is_known else None,
                run_length=piece,
            )

    units = units_of(records(), block_size)
    if num_blocks is not None and num_blocks < units.smallest_pool:
        allowed = f"at least {units.smallest_pool}, the blocks of the largest request"
        raise InvalidArgumentError("num_blocks", num_blocks, allowed)
    looked_up = look_up(units)
    found = endless_hits(looked_up) if num_blocks is None else lru_hits(looked_up, num_blocks)
    return units.tokens - found * block_size
