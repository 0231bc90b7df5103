"""How many free blocks a wish takes, by counting the entries that it would fill."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.brute_force.by_token import most_held, num_unread
from tests.brute_force.history import History
from tests.brute_force.lives import Life, Span, Wish, beginning, growth, length_wanted, num_loaded


def need(history: History, name: str, wish: Wish, *, is_capped: bool = False) -> int | None:
    """Free blocks that the wish takes, None if it has to wait whatever is free (KV-MAMBA-2)."""
    needs = [need_of(history, name, span, wish, is_capped=is_capped) for span in history.spans]
    return None if None in needs else sum(need for need in needs if need is not None)


def need_of(history: History, name: str, span: Span, wish: Wish, *, is_capped: bool) -> int | None:
    hits, referenced = wish.hits[span.index], history.references()
    life = history.lives.get(name)
    held = 0 if life is None else len(life.lists[span.index])
    has_entry = life is not None and history.counted(name, span) is not None
    named = history.blocks.names()
    new = history.of_this_step[span.index]
    if span.is_mamba and hits and new & set(named.get(hits[-1], ())):
        return None
    wanted = length_wanted(span, wish.slots, wish.main, wish.encoder)
    if not span.has_text:
        return len(range(held, wanted))
    if span.is_aligned:
        return need_of_states(history, life, span, wish, wanted, has_entry=has_entry)
    if is_capped and (most := most_held(history.config, span.spec, span.size)) is not None:
        wanted = min(wanted, most)
    if has_entry:
        return len(range(held, wanted))
    unread = num_unread(span.spec, span.size, wish.at)
    kept = hits[max(0, unread - held) :]
    revived = [block for block in kept if block and not referenced[block]]
    return len(range(max(unread, len(hits) + held), wanted)) + len(revived)


def need_of_states(
    history: History, life: Life | None, span: Span, wish: Wish, wanted: int, *, has_entry: bool
) -> int:
    """Return the need in mode align (KV-MAMBA-7, KV-MAMBA-8)."""
    hits, referenced = wish.hits[span.index], history.references()
    if wish.loads and not has_entry:
        begun = beginning(span, wish)
        loaded = num_loaded(span, wish, len(begun))
        more = growth(span, len(begun) + loaded, wanted, has_taken=False)
        kept = [block for block in begun if block and not referenced[block]]
        return loaded + more.blocks + len(kept)
    revived = [block for block in hits if block and not referenced[block]]
    held = 0 if life is None else len(life.lists[span.index])
    if wanted <= len(hits) + held:
        return len(revived)
    has_taken = life is not None and span.index in life.has_taken
    return len(revived) + 1 + (0 if has_taken else span.num_drafted)


def need_now(history: History, name: str, asked: Mapping[str, Any]) -> int | None:
    """Return the result of `get_num_blocks_to_allocate` (KV-MGR-18)."""
    computed = asked["total_computed_tokens"]
    wish = Wish(
        [()] * len(history.spans), computed, 0, computed,
        asked["num_tokens"], asked["num_tokens_main_model"], asked.get("num_encoder_tokens", 0),
    )  # fmt: skip
    return need(history, name, wish, is_capped=asked.get("apply_admission_cap", False))
