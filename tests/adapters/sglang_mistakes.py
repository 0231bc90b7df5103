"""Judge SGLang's trees, and then with mistakes planted and upstream's own fixes taken back.

    python -m tests.adapters.sglang_mistakes            # writes the tables of docs/FINDINGS.md

Each mistake changes an installed SGLang in memory, until a rule is broken in a life. nano-vllm,
whose accounts are judged beside SGLang's, is looked for on the path.
"""

from __future__ import annotations

import inspect
import logging
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from time import process_time
from types import MappingProxyType
from typing import Any

from kvcheck.adapters.sglang import trees
from kvcheck.adapters.sglang.engine import load_modules
from kvcheck.discovery import find_tree
from kvcheck.play.lives import broken_by, judged
from kvcheck.tree.suite import game_of
from tests.source import ROOT, write_behind

LIVES = 150
RUNS = "| subject | rules tried | broken | CPU seconds |\n|---|---:|---|---:|\n"
TABLE = "| | what is changed | rules named | lives | CPU seconds |\n|---|---|---|---|---|\n"

SUBJECTS: Mapping[str, str] = MappingProxyType(
    {
        "sglang.trees:python_core": "full attention and windows",
        "sglang.trees:rust_core": "the same; its nodes cannot be seen",
        "sglang.trees:all_orders": "every order of eviction",
        "sglang.trees:plain_radix_cache": "the older tree",
        "sglang.trees:states": "recurrent states as well, which are copied",
        "sglang.trees:rust_states": "the same; its nodes cannot be seen",
        "sglang.trees:extra_buffer": "states are left at a grid of positions",
        "sglang.trees:in_session": "as `states`, each request is one of a session",
        "sglang.trees:kept_in_session": "the same; a request may keep a match's state",
        "sglang.trees:sessions": "as `python_core`, what sessions have stored is evicted last",
        "sglang.trees:host": "full attention with HiCache, which writes through",
        "sglang:implementation": "the accounts alone, by the calls of a manager of blocks",
        "nanovllm:implementation": "the accounts of nano-vllm's manager",
    }
)
"""Subjects by their factories in `kvcheck.adapters`."""


@dataclass(frozen=True)
class Change:
    """A function of SGLang's, `place`, whose text `old` becomes `new`.

    `subject`: of `trees`. `rules`: one of these should be named, among the first three.
    """

    about: str
    place: str
    old: str
    new: str
    subject: str
    rules: tuple[str, ...]
    more: tuple[tuple[str, str], ...] = ()


ADDER = "managers.schedule_policy:PrefillAdder"
BATCH = "managers.schedule_batch:ScheduleBatch"
SWA = "mem_cache.unified_cache.components.swa:SWAComponent"
STATE = "mem_cache.unified_cache.components.mamba:MambaComponent"
CORE = "mem_cache.unified_cache.unified_tree_core:UnifiedTreeCore"
CACHE = "mem_cache.unified_radix_cache:UnifiedRadixCache"
WINDOWS = "mem_cache.allocator.swa:SWATokenToKVPoolAllocator"
HOST = "mem_cache.hybrid_cache.hybrid_cache_controller:HybridCacheController"
QUEUE = "managers.scheduler:Scheduler"

FIXES: Mapping[str, Change] = MappingProxyType(
    {
        "27586": Change(
            "a recovered window is freed with the slot of full attention that gave way",
            f"{SWA}._recover_from_incoming",
            "FreeDeviceKVFullOnly([old_full])",
            "FreeDeviceKVFullOnly([old_full[:0]])",
            "python_core",
            ("KV-TREE-26", "KV-TREE-24", "KV-TREE-12", "KV-TREE-5"),
        ),
        "29860": Change(
            "windows are given up to the page in which the prompt ends",
            "mem_cache.common:free_swa_out_of_window_slots",
            "max(sliding_window_size, page_size), page_size",
            "sliding_window_size, 1",
            "python_core",
            ("KV-TREE-31", "KV-TREE-17", "KV-TREE-25", "KV-TREE-9"),
        ),
        "29354": Change(
            "a copy that was staged for a refused request is made later",
            f"{QUEUE}._get_new_batch_prefill_raw",
            "req.kv.mamba_cow_src_index = None",
            "pass",
            "states",
            ("KV-TREE-27", "KV-TREE-34", "KV-TREE-21"),
        ),
        "27038": Change(
            "a lock is undone without its end: windows of others above it, too",
            f"{SWA}.release_component_lock",
            "if swa_uuid_for_lock and comp.metadata.get(uuid_key) == swa_uuid_for_lock:",
            "if False:",
            "python_core",
            ("KV-TREE-10", "KV-TREE-9", "KV-TREE-12"),
            (("assert ref > 0, (", "assert True, ("), ("= ref - 1", "= max(ref - 1, 0)")),
        ),
        "35270": Change(
            "a checkpoint stores what is not computed as well",
            f"{CACHE}.checkpoint_into_tree",
            "token_ids = req.full_untruncated_fill_ids[:up_to]",
            "token_ids = (req.full_untruncated_fill_ids + array('q', [0]))[: up_to + 1]",
            "python_core",
            ("KV-TREE-7", "KV-TREE-6", "KV-TREE-5", "KV-TREE-8"),
        ),
    }
)

MISTAKES: Mapping[str, Change] = MappingProxyType(
    {
        "salts are ignored": Change(
            "a key has no salt",
            "mem_cache.radix_cache:RadixKey.__init__",
            "self.cache_salt = cache_salt or None",
            "self.cache_salt = None",
            "python_core",
            ("KV-TREE-2",),
        ),
        "duplicates stay": Change(
            "an insert does not free what the tree has already",
            f"{CORE}._insert_overlap_step",
            "if dup_start < consumed_from:",
            "if False:",
            "python_core",
            ("KV-TREE-7", "KV-TREE-8", "KV-TREE-12"),
        ),
        "row keeps freed duplicates": Change(
            "a checkpoint does not write the tree's slots into the row",
            f"{CACHE}.checkpoint_into_tree",
            "new_indices[req.kv.cache_protected_len :],",
            "kv_indices[req.kv.cache_protected_len : len(new_indices)],",
            "python_core",
            ("KV-TREE-7", "KV-TREE-6"),
        ),
        "a lock less": Change(
            "a checkpoint does not lock where it ends",
            f"{CACHE}.checkpoint_into_tree",
            "req.lock = self.lock(",
            "req.lock = (lambda *_, **__: None)(",
            "python_core",
            ("KV-TREE-9", "KV-TREE-10", "KV-TREE-11"),
        ),
        "windows by one less": Change(
            "a match takes a window that lacks a token",
            f"{SWA}.create_match_validator",
            'return state["len"] >= sliding_window_size',
            'return state["len"] >= sliding_window_size - 2',
            "python_core",
            ("KV-TREE-17", "KV-TREE-16"),
        ),
        "a state's lock less": Change(
            "a state is not locked while it is copied",
            f"{ADDER}._commit_prefill_admission",
            "self.tree_cache.lock(req.last_node)",
            "self.tree_cache.lock(req.last_node, self.tree_cache.tree_components[1:])",
            "states",
            ("KV-TREE-9", "KV-TREE-10", "KV-TREE-34"),
        ),
        "states are not cleared": Change(
            "a new slot of a state keeps what it had",
            f"{BATCH}._collect_deferred_mamba_cow_and_clear",
            "elif req.kv.mamba_needs_clear:",
            "elif False:",
            "states",
            ("KV-TREE-27",),
        ),
        "a split keeps the state above": Change(
            "both halves of a node have its state",
            f"{STATE}.redistribute_on_node_split",
            "new_parent.component_data[ct].value = None",
            "new_parent.component_data[ct].value = child.component_data[ct].value",
            "states",
            ("KV-TREE-3", "KV-TREE-18", "KV-TREE-28", "KV-TREE-5"),
        ),
        "one evicted too few": Change(
            "the walk over windows ends a slot early",
            f"{SWA}._evict_device_start",
            "self._evict_device_request_cnt = request_cnt",
            "self._evict_device_request_cnt = request_cnt - 1",
            "python_core",
            ("KV-TREE-14",),
        ),
        "a store locks nothing": Change(
            "a node may be evicted while it is copied to the host",
            f"{CACHE}._execute_and_commit_kv_backup",
            "lock_params = self.inc_lock_ref(node_id).to_dec_params()",
            "pass",
            "host",
            ("KV-TREE-38",),
        ),
        "a load shifts": Change(
            "a slot is loaded from its neighbour's copy",
            f"{HOST}.load",
            "CacheOperation(\n            host_indices,",
            "CacheOperation(\n            host_indices.roll(1),",
            "host",
            ("KV-TREE-40", "KV-TREE-39"),
        ),
        "the last token is a hit": Change(
            "a request may be cached as a whole",
            "managers.schedule_batch:Req._compute_max_prefix_len",
            "max_prefix_len = input_len - 1",
            "max_prefix_len = input_len",
            "python_core",
            ("KV-TREE-19",),
        ),
    }
)


@contextmanager
def planted(change: Change) -> Iterator[None]:
    """Change the function in memory, and change it back."""
    module_name, _, path = change.place.partition(":")
    module = sys.modules.get(f"sglang.srt.{module_name}") or __import__(
        f"sglang.srt.{module_name}", fromlist=["_"]
    )
    *owners, name = path.split(".")
    owner: Any = module
    for each in owners:
        owner = getattr(owner, each)
    was = inspect.unwrap(getattr(owner, name))
    text = textwrap.dedent(inspect.getsource(was))
    if text.count(change.old) < 1:
        raise LookupError(f"{change.place} has no {change.old!r}")
    text = text[text.index("def ") :]
    for old, new in ((change.old, change.new), *change.more):
        text = text.replace(old, new)
    scope: dict[str, Any] = {}
    exec(compile("from __future__ import annotations\n" + text, change.place, "exec"),
         vars(module), scope)  # fmt: skip
    before = getattr(owner, name)
    others = [] if owners else [each for each in list(sys.modules.values()) if each is not module]
    places = [owner, *(each for each in others if vars(each).get(name) is before)]
    for each in places:
        setattr(each, name, scope[name])
    try:
        yield
    finally:
        for each in places:
            setattr(each, name, before)


def found(change: Change) -> tuple[list[str], int, float, str]:
    """Return the rules named first, the lives and seconds it took, and what was wrong."""
    begun = process_time()
    with planted(change):
        subject: Callable[[], Any] = getattr(trees, change.subject)
        game = game_of(subject())
        for seed in range(LIVES):
            broken = broken_by(game, game.begun(game.drawn(seed)))
            if broken is not None:
                rules = [broken.rule, *broken.others][:3]
                return rules, seed + 1, process_time() - begun, str(broken)
    return [], LIVES, process_time() - begun, "nothing"


def runs() -> Iterator[str]:
    """Judge each subject, and yield a row for it."""
    subjects = {name: find_tree(f"kvcheck.adapters.{name}") for name in SUBJECTS}
    for name, about in SUBJECTS.items():
        begun = process_time()
        report = judged(game_of(subjects[name]), num_lives=LIVES)
        tried = len([rule for rule in report.rules if report.tried[rule]])
        broken = ", ".join(sorted(report.findings)) or "none"
        seconds = process_time() - begun
        yield f"| `{name}`: {about} | {tried} | {broken} | {seconds:.1f} |"


def mistakes() -> Iterator[str]:
    """Plant each mistake, and yield a row for it."""
    for title, changes in (("taken back", FIXES), ("planted", MISTAKES)):
        for name, change in changes.items():
            rules, lives, seconds, _ = found(change)
            is_right = bool(set(rules) & set(change.rules))
            label = f"[#{name}](https://github.com/sgl-project/sglang/pull/{name})"
            label = label if title == "taken back" else name
            named = ", ".join(rules) or "none"
            named += "" if is_right or not rules else " (not the right one)"
            yield f"| {label} | {change.about} | {named} | {lives} | {seconds:.1f} |"


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    load_modules()
    write_behind(ROOT / "docs/FINDINGS.md", RUNS, runs())
    write_behind(ROOT / "docs/FINDINGS.md", TABLE, mistakes())
