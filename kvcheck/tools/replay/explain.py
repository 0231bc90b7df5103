"""Explain, token by token, how the measured hit rate differs from the trace's repeat rate.

The trace alone determines which ids repeat; a manager can reuse fewer tokens, since only full
blocks are cached, the last token is always recomputed, and so on. Every repeated token that was not
hit gets exactly one reason, in the order of `Reason`; the remainder must be zero. See
spec/replay.md.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction

from kvcheck.tools.replay.trace import RUN_LENGTH_TOKENS, TraceRecord
from kvspec.errors import KVSpecError


class Reason(Enum):
    """Reasons why repeated tokens are not hits, in the order in which they are tried.

    `label` is the key in the report, `meaning` one line of explanation.
    """

    OTHER_PREFIX = (
        "other_prefix",
        "id seen before, but after other tokens, so the prefix differs",
    )
    INCOMPLETE_BLOCK = (
        "incomplete_block",
        "in the last, incomplete block: only full blocks are cached",
    )
    LAST_TOKEN = (
        "last_token",
        "in the block of the last token, which is always recomputed",
    )
    PARTLY_NEW_BLOCK = (
        "partly_new_block",
        "in a block that also holds tokens of an id not seen before",
    )
    SEEN_SHORTER = (
        "seen_shorter",
        "seen before only in an incomplete block; these are never cached",
    )
    NOT_YET_COMPUTED = (
        "not_yet_computed",
        "an earlier request had the block, but had not computed it yet",
    )
    NOT_REACHABLE = (
        "not_reachable",
        "cached before, but evicted (or behind an evicted block)",
    )
    BEYOND_REPEATS = (
        "beyond_repeats",
        "hits of tokens whose ids were not seen before: different ids, equal tokens",
    )

    def __init__(self, label: str, meaning: str) -> None:
        self.label = label
        self.meaning = meaning


CUT_LAST_RUN = "cut_last_run"
"""The first item: the change from counting repeated ids to counting repeated tokens."""

_CUT_LAST_RUN_MEANING = "counted in tokens: a request's last id holds fewer than the others"


class ExplanationError(KVSpecError):
    """Raised if the explanation does not add up to the measured hits; carries both counts."""

    def __init__(self, explained_tokens: int, hit_tokens: int) -> None:
        super().__init__(
            f"explanation and measurement differ: {explained_tokens} tokens explained as hits,"
            f" {hit_tokens} hit"
        )
        self.explained_tokens = explained_tokens
        self.hit_tokens = hit_tokens


@dataclass(frozen=True)
class WaterfallItem:
    """One step of the explanation; `rate_change` is added to the rate of the steps before.

    `tokens` (negative: not hit) is None for the first item, which only changes the weighting.
    """

    name: str
    meaning: str
    tokens: int | None
    rate_change: Fraction


@dataclass(frozen=True)
class Waterfall:
    """The steps from the share of repeated ids to the share of hit tokens, over first admissions.

    `changes` are tokens by reason. All numbers are exact.
    """

    ids: int
    repeated_ids: int
    tokens: int
    repeated_tokens: int
    changes: dict[Reason, int]
    hit_tokens: int

    @property
    def repeat_rate(self) -> Fraction:
        """Share of ids that occurred earlier in the trace."""
        return Fraction(self.repeated_ids, max(self.ids, 1))

    @property
    def hit_rate(self) -> Fraction:
        """Share of tokens that were hit."""
        return self._share(self.hit_tokens)

    @property
    def items(self) -> tuple[WaterfallItem, ...]:
        """Steps from `repeat_rate` to `hit_rate`, in order."""
        cut = self._share(self.repeated_tokens) - self.repeat_rate
        first = WaterfallItem(CUT_LAST_RUN, _CUT_LAST_RUN_MEANING, None, cut)
        others = (
            WaterfallItem(reason.label, reason.meaning, tokens, self._share(tokens))
            for reason, tokens in self.changes.items()
        )
        return (first, *others)

    @property
    def residual(self) -> Fraction:
        """Rate left unexplained by the items, which is 0."""
        explained = self.repeat_rate + sum(item.rate_change for item in self.items)
        return self.hit_rate - explained

    def _share(self, tokens: int) -> Fraction:
        return Fraction(tokens, max(self.tokens, 1))


class Explainer:
    """Follows the first admissions of a replay, in trace order.

    Prefixes are numbered: a *node* is an id after another node (-1 for none), so that equal nodes
    mean equal ids from the start. For each node it keeps the most tokens of its run that an earlier
    request had, and the most whose blocks were registered. Memory grows with distinct prefixes.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._run_length = RUN_LENGTH_TOKENS  # replaced by that of the trace's records
        self._nodes: dict[tuple[int, int], int] = {}
        self._ids: set[int] = set()
        self._seen = array("i")
        self._registered = array("i")
        self._total_ids = 0
        self._total_tokens = 0
        self._repeated_ids = 0
        self._repeated_tokens = 0
        self._changes = dict.fromkeys(Reason, 0)

    def admitted(self, record: TraceRecord, hit_tokens: int) -> list[int]:
        """Account for a first admission that hit `hit_tokens` tokens.

        Returns the request's nodes, one per id, for `registered`. Its known output counts as seen
        for later requests.
        """
        self._run_length = record.run_length
        length = record.input_length
        self._total_ids += len(record.hash_ids)
        self._total_tokens += length
        repeated = 0
        for index, run_id in enumerate(record.hash_ids):
            if run_id in self._ids:
                self._repeated_ids += 1
                repeated += self._tokens_of(index, length)
            else:
                self._ids.add(run_id)
        self._repeated_tokens += repeated
        self._ids.update(record.output_ids or ())
        nodes, known = self._enter(record.ids)
        known = min(known, len(record.hash_ids))
        self._give_reasons(nodes[:known], length, repeated, hit_tokens)
        for index, node in enumerate(nodes):
            here = self._tokens_of(index, record.cached_length)
            self._seen[node] = max(self._seen[node], here)
        return nodes

    def registered(self, nodes: Sequence[int], start: int, end: int) -> None:
        """Note that tokens `start` … `end` - 1 of a request, all known, got their slots.

        This registers its full blocks among the first `end` tokens.
        """
        full = end - end % self._block_size
        if full <= start - start % self._block_size:
            return
        first = (start - start % self._block_size) // self._run_length
        for index in range(first, -(-full // self._run_length)):
            node = nodes[index]
            self._registered[node] = max(self._registered[node], self._tokens_of(index, full))

    def _enter(self, hash_ids: Sequence[int]) -> tuple[list[int], int]:
        """Return the nodes of a request, and how many leading ones existed before."""
        nodes = []
        known = 0
        node = -1
        for run_id in hash_ids:
            key = (node, run_id)
            found = self._nodes.get(key)
            if found is None:
                node = len(self._nodes)
                self._nodes[key] = node
                self._seen.append(0)
                self._registered.append(0)
            else:
                node = found
                known += 1
            nodes.append(node)
        return nodes, known

    def _give_reasons(self, known: list[int], length: int, repeated: int, hit: int) -> None:
        """Attribute the difference between repeated and hit tokens to the reasons, in order."""
        size = self._block_size
        changes = self._changes
        same_prefix = min(len(known) * self._run_length, length)
        limits = (
            (Reason.OTHER_PREFIX, same_prefix),
            (Reason.INCOMPLETE_BLOCK, length - length % size),
            (Reason.LAST_TOKEN, (length - 1) - (length - 1) % size),
            (Reason.PARTLY_NEW_BLOCK, same_prefix - same_prefix % size),
            (Reason.SEEN_SHORTER, self._full_blocks(known, self._seen)),
            (Reason.NOT_YET_COMPUTED, self._full_blocks(known, self._registered)),
        )
        left = repeated
        for reason, limit in limits:
            kept = min(left, limit)
            changes[reason] -= left - kept
            left = kept
        if hit <= left:
            changes[Reason.NOT_REACHABLE] -= left - hit
        else:
            changes[Reason.BEYOND_REPEATS] += hit - left

    def _full_blocks(self, known: list[int], extents: array[int]) -> int:
        """Count the tokens of the leading full blocks within the extents of a chain of nodes."""
        tokens = 0
        for node in known:
            tokens += extents[node]
            if extents[node] < self._run_length:
                break
        return tokens - tokens % self._block_size

    def waterfall(self, hit_tokens: int) -> Waterfall:
        """Explain `hit_tokens`, the hits that the driver counted.

        Raises ExplanationError if the items do not add up to it exactly.
        """
        explained = self._repeated_tokens + sum(self._changes.values())
        if explained != hit_tokens:
            raise ExplanationError(explained, hit_tokens)
        return Waterfall(
            ids=self._total_ids,
            repeated_ids=self._repeated_ids,
            tokens=self._total_tokens,
            repeated_tokens=self._repeated_tokens,
            changes=dict(self._changes),
            hit_tokens=hit_tokens,
        )

    def _tokens_of(self, index: int, length: int) -> int:
        """Count the tokens of run `index` in an input of `length` tokens."""
        return min(self._run_length, length - index * self._run_length)
