"""Checks of the arguments of a tree (KV-TREE-33)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from kvspec.domains import int_at_least
from kvspec.errors import InvalidArgumentError
from kvspec.tree import ORDERS, TreeConfig


def check_config(config: TreeConfig) -> None:
    """Raise InvalidArgumentError for pools without whole pages, or an order that is not offered."""
    page_size = config.page_size_tokens
    check_number("page_size_tokens", page_size, 1)
    check_number("num_slots", config.num_slots, page_size)
    check_number("window_tokens", config.window_tokens, 0)
    check_number("num_window_slots", config.num_window_slots, 1 if config.window_tokens else 0)
    check_number("num_states", config.num_states, 0)
    check_number("tail_tokens", config.tail_tokens, 0)
    check_number("num_host_slots", config.num_host_slots, 0)
    is_plain = not config.window_tokens and not config.num_states
    if config.num_host_slots % page_size or (config.num_host_slots and not is_plain):
        allowed = "whole pages, and 0 beside windows and states"
        raise InvalidArgumentError("num_host_slots", config.num_host_slots, allowed)
    if config.num_slots % page_size:
        raise InvalidArgumentError("num_slots", config.num_slots, "whole pages")
    if config.num_window_slots % page_size or (
        config.num_window_slots and not config.window_tokens
    ):
        allowed = "whole pages, and 0 without a window"
        raise InvalidArgumentError("num_window_slots", config.num_window_slots, allowed)
    if config.order not in ORDERS:
        raise InvalidArgumentError("order", config.order, " | ".join(ORDERS))


def check_new(request_id: str, known: Collection[str], salt: str, priority: int) -> None:
    if type(request_id) is not str or request_id in known:
        raise InvalidArgumentError("request_id", request_id, "a new one")
    if type(salt) is not str:
        raise InvalidArgumentError("salt", salt, "a str")
    check_number("priority", priority, 0)


def check_session(session: str) -> None:
    if type(session) is not str or not session:
        raise InvalidArgumentError("session", session, "a name")


def check_number(name: str, number: int, least: int) -> None:
    int_at_least(name, number, least, error=InvalidArgumentError)


def check_tokens(tokens: Sequence[int], *, least: int = 0) -> list[int]:
    """Return a copy of the tokens; InvalidArgumentError unless all are ints, at least so many."""
    if not isinstance(tokens, list | tuple) or len(tokens) < least:
        raise InvalidArgumentError("tokens", tokens, f"a list or tuple of at least {least} tokens")
    for token in tokens:
        check_number("tokens", token, 0)
    return list(tokens)
