"""Needs, and what an allocation takes: from the history alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.brute_force.by_token import most_held, num_unread
from tests.brute_force.history import History
from tests.brute_force.lives import (
    Entry,
    Life,
    Span,
    Wish,
    beginning,
    growth,
    length_wanted,
    num_loaded,
)


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


def allocate(history: History, name: str, asked: Mapping[str, Any]) -> list[list[int]] | None:
    history.now += 1
    text, longest = history.texts[name], history.config.max_model_len_tokens
    local = asked["num_computed_tokens"] + asked.get("num_new_computed_tokens", 0)
    loads = asked.get("num_external_computed_tokens", 0)
    new, ahead = asked["num_new_tokens"], asked.get("num_lookahead_tokens", 0)
    main = min(local + loads, longest) + new
    at = min(local + loads, len(text.tokens) - 1) if loads else local
    slots = {token for token in range(main + ahead) if token < longest}
    if loads and not history.is_running(name):
        slots |= set(range(local + loads))
    wish = Wish(
        asked.get("new_computed_blocks") or [()] * len(history.spans),
        local, loads, at, len(slots), main, asked.get("num_encoder_tokens", 0),
    )  # fmt: skip
    keeps = int(history.config.watermark * history.config.kv_cache.num_blocks)
    if asked["status"] not in ("WAITING", "PREEMPTED") or not asked.get("has_scheduled_reqs", True):
        keeps = 0
    if asked.get("full_sequence_must_fit"):  # KV-MGR-5
        whole = min(len(text.tokens), longest)
        all_of_it = Wish(wish.hits, local, loads, min(at, longest), whole, whole, wish.encoder)
        most = need(history, name, all_of_it, is_capped=True)
        if most is None or most + keeps > len(history.free()):
            return None
    in_flight = asked.get("num_in_flight_tokens", 0)  # KV-MGR-21
    history.remove(name, max(0, min(local + loads, longest, at) - in_flight))
    takes = need(history, name, wish)
    if takes is None or takes + keeps > len(history.free()) - asked.get("reserved_blocks", 0):
        return None
    answer = grant(history, name, wish)
    if not asked.get("delay_cache_blocks"):
        computed = range(min(local + loads, longest) + new)
        verified = len([t for t in computed if t < min(longest, len(text.tokens))])
        history.cache(name, verified, asked.get("junction_tokens", 0))
    return answer


def grant(history: History, name: str, wish: Wish) -> list[list[int]]:
    """Take hits, loads and new blocks, each in all groups (KV-GRP-8); return the new ones."""
    begins = not history.is_running(name) and (any(wish.hits) or wish.loads > 0)
    life = history.lives.setdefault(name, Life.of(history.texts[name], history.spans))
    if begins:
        for span in history.spans:
            first = beginning(span, wish)
            life.lists[span.index] += [Entry(block, history.now) for block in first]
            life.begun[span.index] = len(first) if span.has_text else None
        for span in history.spans:
            history.take(life, span, num_loaded(span, wish, len(life.lists[span.index])))
    answer = []
    for span in history.spans:
        length = len(life.lists[span.index])
        wanted = length_wanted(span, wish.slots, wish.main, wish.encoder)
        more = growth(span, length, wanted, has_taken=span.index in life.has_taken)
        entries = life.lists[span.index]
        entries += [Entry(0, history.now)] * more.nulls
        for index in more.moved:
            entries.append(Entry(life.block(span, index), history.now))
            entries[index].is_moved = True
        history.take(life, span, more.blocks)
        if span.is_aligned and wanted > length:
            life.has_taken.add(span.index)
        answer.append(life.held(span)[length:])
    return answer
