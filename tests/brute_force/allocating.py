"""An allocation in its order: gate, removal, need, hits, loads, new blocks, caching."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.brute_force.history import History
from tests.brute_force.lives import Entry, Life, Wish, beginning, growth, length_wanted, num_loaded
from tests.brute_force.needs import need


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
