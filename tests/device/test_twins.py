"""Each operation with one mistake in it: the tests beside this file find it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from kvfast.device.base import layout
from kvfast.device.pages import formats as _formats
from kvfast.device.pages import plain as _pages_torch
from kvfast.device.pages.segments import Segments
from kvspec.specs import LayerSpec
from tests.device import test_operations, test_pools, test_swap
from tests.device.models import full, mamba

Check = Callable[[], None]


def written() -> None:
    test_operations.test_a_token_is_written_to_its_slot_and_read_from_it("torch")


def rounded() -> None:
    test_operations.test_what_is_stored_is_the_nearest_number_of_the_format("float8_e4m3fn")


def scaled() -> None:
    test_operations.test_latents_go_through_the_same_operations("torch")


def copied() -> None:
    test_operations.test_slots_are_copied_with_their_scales("torch", "FP8_PER_TOKEN_HEAD")


def zeroed() -> None:
    test_operations.test_zeroed_blocks_are_zero_and_no_others("torch", full(), [1, 6, 1])


def zeroed_states() -> None:
    test_operations.test_zeroed_blocks_are_zero_and_no_others("torch", mamba(), [3])


def laid_out() -> None:
    test_pools.test_a_page_has_the_bytes_that_planning_counts_and_no_two_elements_share_one(
        full(), "HND"
    )


def swapped() -> None:
    # Without Hypothesis around it: its own report of a failure is not this test's.
    test_swap.there_and_back([1, 2, 3, 4, 5, 6], [3, 1, 2], 3, "torch")


places, encoded, copy_pages = _pages_torch._places, _formats.encoded, _pages_torch.copy_pages
store_tokens, page_parts = _pages_torch.store_tokens, layout.page_parts


def next_slot(part: torch.Tensor, slots: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return places(part, torch.where(slots > 0, slots + 1, slots))


def mixed_up(part: torch.Tensor, slots: torch.Tensor) -> tuple[torch.Tensor, ...]:
    valid, blocks, offsets = places(part, slots)
    return valid, offsets, blocks % part.shape[1]


def padding_goes_to_block_one(part: torch.Tensor, slots: torch.Tensor) -> tuple[torch.Tensor, ...]:
    valid, blocks, offsets = places(part, slots)
    return torch.ones_like(valid), torch.where(valid, blocks, torch.ones_like(blocks)), offsets


def cut_off(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if dtype in _formats.LARGEST:
        values = (values.view(torch.int32) & ~0xFFFFF).view(torch.float32)
    return encoded(values, dtype)


def too_large_is_not_a_number(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if dtype in _formats.LARGEST:
        over = values.abs() > _formats.LARGEST[dtype]
        values = torch.where(over, torch.nan, values)
    return encoded(values, dtype)


def without_scales(
    part: torch.Tensor, scales: object, tokens: torch.Tensor, slots: torch.Tensor, scale: float
) -> None:
    if part.shape[3] > 1:  # scales are copied as vectors of one element
        store_tokens(part, None, tokens, slots, scale)


def first_pages_only(segments: Segments, ids: torch.Tensor) -> None:
    segments.pages[0][ids] = 0


def all_but_the_padding(segments: Segments, ids: torch.Tensor) -> None:
    for one in segments.pages:
        one[ids, : one.shape[1] // 2] = 0


def copies_the_other_way(
    source: Segments, destination: Segments, read: torch.Tensor, written: torch.Tensor
) -> None:
    copy_pages(destination, source, written, read)


def copies_the_first_allocation(
    source: Segments, destination: Segments, read: torch.Tensor, written: torch.Tensor
) -> None:
    one, other = (replace(each, pages=each.pages[:1]) for each in (source, destination))
    copy_pages(one, other, read, written)


def values_over_keys(spec: LayerSpec, order: layout.Layout = "NHD") -> tuple[layout.Part, ...]:
    return tuple(replace(part, offset_bytes=0) for part in page_parts(spec, order))


@pytest.mark.parametrize(
    ("module", "name", "mistake", "check"),
    [
        (_pages_torch, "_places", next_slot, written),
        (_pages_torch, "_places", mixed_up, written),
        (_pages_torch, "_places", padding_goes_to_block_one, written),
        (_formats, "encoded", cut_off, rounded),
        (_formats, "encoded", too_large_is_not_a_number, scaled),
        (_pages_torch, "zero_pages", first_pages_only, zeroed),
        (_pages_torch, "zero_pages", all_but_the_padding, zeroed_states),
        (_pages_torch, "copy_pages", copies_the_other_way, swapped),
        (_pages_torch, "copy_pages", copies_the_first_allocation, swapped),
        (_pages_torch, "store_tokens", without_scales, copied),
        (test_pools, "page_parts", values_over_keys, laid_out),
    ],
)
def test_a_mistake_is_found(
    module: object,
    name: str,
    mistake: object,
    check: Check,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check()
    monkeypatch.setattr(module, name, mistake)
    with pytest.raises(AssertionError):
        check()
