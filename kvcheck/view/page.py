"""The page of a recording: one HTML file that needs no network and nothing beside it.

The frames travel as JSON, each with what changed since the frame before; the page's script folds
them again. `data/view.html` is the page, `data/view.js` and `data/view_time.js` are its script.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from html import escape
from importlib.resources import files
from typing import Any

from kvcheck.play.text import said_arguments
from kvcheck.rulebook import titled
from kvcheck.view.model import PREEMPTED, Frame, Recording
from kvcheck.view.text import MEANINGS, group_words
from kvspec.record import Operation

SHOWN_CHARACTERS = 2000
"""Arguments and results whose JSON is longer are cut; the record has all of them."""


def page(recording: Recording) -> str:
    return filled(f"Record {recording.path.name}", embedded(content(recording)))


def filled(title: str, data: str) -> str:
    fill = {
        "title": escape(title),
        "script": data_file("view.js") + data_file("view_sides.js") + data_file("view_time.js"),
        "data": data,
    }
    # In one pass: what is filled in is not searched for further places.
    return re.sub(r"\{\{(title|script|data)\}\}", lambda at: fill[at[1]], data_file("view.html"))


def embedded(value: object) -> str:
    """Return JSON that is safe inside a script element, whatever texts it holds.

    With `<` written as an escape neither `</script>` nor `<!--` can occur.
    """
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)  # ASCII only
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def document(title: str, body: Iterable[str], *, style: str) -> str:
    """Return a page that loads nothing, and that no text in it can make load anything."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            f"<title>{escape(title)}</title>",
            f"<style>{style}</style></head><body>",
            *body,
            "</body></html>",
            "",
        ]
    )


def content(recording: Recording) -> dict[str, Any]:
    header = recording.header
    cache = header.config.kv_cache
    violation = recording.violation
    return {
        "name": recording.path.name,
        "source": header.source,
        "scenario": header.scenario,
        "num_blocks": cache.num_blocks,
        "groups": [group_words(group) for group in cache.groups],
        "caching": header.config.enable_caching,
        "num_operations": recording.num_operations,
        "replayed_on": recording.replayed_on,
        "violation": violation and {**asdict(violation), "title": titled(violation.rule or "")},
        "notes": list(recording.notes),
        "lives": recording.lives,
        "frames": list(_frames(recording, recording.frames)),
        "other": list(_frames(recording, recording.other)),
        "reference": recording.reference,
        "is_part": recording.is_part,
    }


def _frames(recording: Recording, frames: Sequence[Frame]) -> Iterator[dict[str, Any]]:
    """Yield the frames, each with only its new members."""
    preempted = {
        operation
        for life in recording.lives.values()
        for operation, turned in life
        if turned == PREEMPTED
    }
    before: Frame | None = None
    for frame in frames:
        operation, marks = frame.operation, frame.marks
        shown: dict[str, Any] = {"i": -1 if operation is None else operation.index}
        if operation is not None:
            shown.update(_operation(operation))
        shown.update(_changes(before, frame))
        if marks.refused is not None:
            shown["refused"] = marks.refused
        for name in ("hit", "evicted", "cached"):
            if blocks := getattr(marks, name):
                shown[name] = list(blocks)
        if shown["i"] in preempted:
            shown["preempted"] = True
        yield shown
        before = frame


def _operation(operation: Operation) -> dict[str, Any]:
    asked = said_arguments(operation.arguments)
    shown: dict[str, Any] = {
        "op": operation.name,
        "meaning": MEANINGS[operation.name],
        "args": {name: _text(value) for name, value in asked.items()},
    }
    if folded := [name for name in operation.arguments if name not in asked]:
        shown["folded"] = folded
    if operation.request_id is not None:
        shown["req"] = operation.request_id
    if operation.raises is None:
        shown["result"] = _text(operation.result)
    if operation.quirks:
        shown["quirks"] = list(operation.quirks)
    return shown


def _text(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    if len(text) <= SHOWN_CHARACTERS:
        return text
    return f"{text[:SHOWN_CHARACTERS]} … ({len(text)} characters; the record has them all)"


def _changes(before: Frame | None, frame: Frame) -> dict[str, Any]:
    """Return the changes of a state: items by place, members by name, the queue by its ends."""
    new = frame.state
    old = None if before is None else before.state
    shown: dict[str, Any] = {}
    if old is None or old.num_free_blocks != new.num_free_blocks or old.usage != new.usage:
        shown["free_blocks"], shown["usage"] = new.num_free_blocks, new.usage
    for short, name in (("refs", "ref_cnt"), ("keys", "block_hash")):
        values = new.fields[name]
        known: Sequence[Any] = [] if old is None else old.fields[name]
        if old is None:
            shown[short] = list(enumerate(values))
        elif values is not known:
            shown[short] = [
                [at, value]
                for at, (was, value) in enumerate(zip(known, values, strict=True))
                if was != value
            ]
    for short, name in (("held", "req_blocks"), ("counts", "num_cached_block")):
        members = _members({} if old is None else old.fields[name], new.fields[name])
        if members:
            shown[short] = members
    if old is None or old.dup_order != new.dup_order:
        shown["same_key"] = dict(new.dup_order)
    queue = new.fields["free_queue"]
    if old is None:
        shown["queue"] = {"all": queue}
    elif queue is not old.fields["free_queue"]:
        shown["queue"] = queue_change(old.fields["free_queue"], queue)
    return shown


def _members(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members that are new or differ; null for removed ones."""
    changed = {name: value for name, value in new.items() if old.get(name) != value}
    return {**changed, **{name: None for name in old if name not in new}}


def queue_change(old: Sequence[int], new: Sequence[int]) -> dict[str, Any]:
    """Return the change of a queue: `out` left it, then `front` and `back` joined at its ends.

    If blocks changed places among themselves, `all` is the whole new queue instead.
    """
    kept = set(old) & set(new)
    stayed = [block for block in old if block in kept]
    rest = [block for block in new if block in kept]
    start = next((at for at, block in enumerate(new) if block in kept), len(new))
    end = start + len(stayed)
    if stayed != rest or list(new[start:end]) != stayed:
        return {"all": list(new)}
    change = {
        "out": [block for block in old if block not in kept],
        "front": list(new[:start]),
        "back": list(new[end:]),
    }
    return {name: blocks for name, blocks in change.items() if blocks}


def data_file(name: str) -> str:
    return files("kvcheck").joinpath("data", name).read_text(encoding="utf-8")
