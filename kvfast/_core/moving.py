"""Move the keys of one block to another (KV-INSIDE-3)."""

from __future__ import annotations

from . import probing, record
from .key_map import KeyMap
from .pool import BlockPool


def move_all(pool: BlockPool, source: int, block: int) -> None:
    """Give the keys of `source` to `block`, which has none, as if newly added, without events."""
    entry = pool.more(source)
    pool.set_covered(block, pool.covered(source))
    if pool.order is not None:
        pool.order.move(source, block)
    move_entry(pool.keys, source, block)
    if entry:
        pool.set_more(source, 0)
        pool.set_more(block, entry)
    while entry:
        move_entry(pool.keys, entry, entry)
        pool.facts[record.INTS * entry + record.OWNER] = block
        entry = pool.more(entry)


def move_entry(keys: KeyMap, entry: int, target: int) -> None:
    """Give `target` the key of an entry, after all others with the key."""
    for k in range(keys.width):
        keys.words[record.WORDS * target + k] = keys.words[record.WORDS * entry + k]
    mine, theirs = record.INTS * entry, record.INTS * target
    keys.facts[theirs + record.GROUP] = keys.facts[mine + record.GROUP]
    keys.facts[theirs + record.HOME] = keys.facts[mine + record.HOME]
    if keys.remove(entry):
        keys.make_ring(target)
        keys.fill_slot(target)
    else:
        keys.join(target, head_like(keys, target))


def head_like(keys: KeyMap, entry: int) -> int:
    """Return the entry that was added first under the same key; there is one."""
    i = keys.facts[record.INTS * entry + record.HOME] & keys.slot_mask
    while not is_same_key(keys, keys.slots[i] & probing.ENTRY_MASK, entry):
        i = (i + probing.STEP) & keys.slot_mask
    return keys.slots[i] & probing.ENTRY_MASK


def is_same_key(keys: KeyMap, left: int, right: int) -> bool:
    """Return whether two entries have the same key."""
    for k in range(keys.width):
        if keys.words[record.WORDS * left + k] != keys.words[record.WORDS * right + k]:
            return False
    group = keys.facts[record.INTS * left + record.GROUP]
    return group == keys.facts[record.INTS * right + record.GROUP]
