"""The chapter on encoders (KV-CROSS): groups that hold no tokens of the request."""

from __future__ import annotations

from kvcheck.play.verdicts import Level
from kvcheck.rules.bench import Bench
from kvcheck.rules.example import cases, example
from kvcheck.rules.judging import equal, raises
from kvcheck.rules.managed import Managed
from kvcheck.rules.specs import cross, encoder_only, full
from kvspec.blocks import KVCacheBlocks, PrefixHit
from kvspec.errors import ConfigError
from kvspec.specs import LayerSpec

ENCODER = encoder_only(4)


def encoder_decoder(bench: Bench, num_blocks: int = 20) -> Managed:
    """Full attention with block size 4, then cross attention with block size 8; caching off."""
    return bench.manager(num_blocks, full(4), cross(8), enable_caching=False)


@example("KV-CROSS-1")
def the_need_follows_the_encoder_tokens(bench: Bench) -> None:
    """The need follows the encoder tokens: 2 + 3 blocks, then none, then one for 30."""
    manager = encoder_decoder(bench)
    request = manager.request("r", range(40))
    for capped in (False, True):
        found = manager.need(request, 5, encoder=20, capped=capped)
        equal(found, 5, "for 5 and 20 tokens")
    manager.allocate_slots(request, 5, num_encoder_tokens=20)
    request.num_computed_tokens = 5
    for encoder, need in ((0, 0), (30, 1)):
        found = manager.need(request, 8, computed=5, encoder=encoder)
        equal(found, need, f"for {encoder} tokens of an encoder later")


@example("KV-CROSS-1", "KV-MGR-7")
def an_encoder_that_does_not_fit_is_refused(bench: Bench) -> None:
    """An encoder that does not fit is refused, and nothing is taken."""
    for num_blocks, fits in ((6, True), (5, False)):
        manager = encoder_decoder(bench, num_blocks)
        request = manager.request("r", range(5))
        granted = manager.allocate_slots(request, 5, num_encoder_tokens=20) is not None
        equal(granted, fits, f"granted in {num_blocks} blocks")
        equal(manager.num_free_blocks, 0 if fits else 4)


@example("KV-CROSS-2", "KV-GRP-1", "KV-POOL-7", "KV-POOL-8", "KV-GRP-10")
def the_encoder_is_allocated_once(bench: Bench) -> None:
    """The encoder is allocated once, keeps its blocks, and is freed like others."""
    manager = encoder_decoder(bench, 8)
    request = manager.request("r", range(13))
    answer = manager.allocate_slots(request, 5, num_encoder_tokens=20)
    manager.same(answer, ((1, 2), (3, 4, 5)), "at first")
    request.num_computed_tokens = 5
    manager.same(manager.allocate_slots(request, 4, num_encoder_tokens=20), ((6,), ()))
    request.num_computed_tokens = 9
    manager.same(manager.allocate_slots(request, 4), ((7,), ()))
    if bench.zeroes_full_attention:
        manager.same(manager.take_new_block_ids(), (1, 2, 6, 7))
    manager.remove_skipped_blocks(request, 13)
    manager.same(manager.lists(request), [[1, 2, 6, 7], [3, 4, 5]])
    equal(manager.counts(request), (None, None))
    manager.free(request)
    manager.queues([5, 4, 3, 7, 6, 2, 1])


@example("KV-CROSS-2", "KV-GRP-5", "KV-GRP-6")
def external_tokens_leave_the_encoder_alone(bench: Bench) -> None:
    """External tokens leave the encoder alone: two blocks in group 0, none in group 1."""
    manager = encoder_decoder(bench)
    request = manager.request("r", range(12))
    arguments = {"num_external_computed_tokens": 8, "num_encoder_tokens": 20}
    answer = manager.allocate_slots(request, 1, **arguments)
    manager.same(answer, ((3,), (4, 5, 6)), "the answer")
    manager.same(manager.lists(request), [[1, 2, 3], [4, 5, 6]])
    equal(manager.counts(request), (0, None))


@example("KV-CROSS-2", "KV-REQ-3", "KV-MGR-11")
def the_encoder_limits_no_computed_tokens(bench: Bench) -> None:
    manager = encoder_decoder(bench)
    request = manager.request("r", range(20))
    manager.allocate_slots(request, 12, num_encoder_tokens=8)
    request.num_computed_tokens = 12
    manager.cache_blocks(request, 12)
    manager.same(manager.allocate_slots(request, 8), ((5, 6), ()))


@example("KV-CROSS-3", "KV-COORD-1")
def a_second_request_computes_everything_again(bench: Bench) -> None:
    """A second request computes everything again, in blocks of its own."""
    manager = encoder_decoder(bench)
    for name, blocks in (("a", [[1, 2], [3]]), ("b", [[4, 5], [6]])):
        request = manager.request(name, range(8))
        empty = PrefixHit(KVCacheBlocks.empty(2), 0)
        equal(manager.get_computed_blocks(request), empty)
        equal(tuple(manager.get_num_common_prefix_blocks(request)), (0, 0))
        manager.admit(request, num_encoder_tokens=8)
        manager.same(manager.lists(request), blocks, f"lists of {name}")


@cases(((cross(4),),), ((full(4), cross(4)),), ((ENCODER,),), ((full(4), ENCODER),))
@example("KV-CROSS-4", "KV-ERR-5", level=Level.SAFETY)
def caching_is_refused_beside_an_encoder(bench: Bench, specs: tuple[LayerSpec, ...]) -> None:
    """Nothing of these layers is ever a hit, so nothing at all would be."""
    with raises(ConfigError, field="enable_caching"):
        bench.manager(10, *specs)
    bench.manager(10, *specs, enable_caching=False)


@example("KV-CROSS-5")
def a_group_of_encoder_only_layers_needs_no_block(bench: Bench) -> None:
    """A group of encoder-only layers needs no block, encoder tokens or not."""
    manager = bench.manager(10, full(4), ENCODER, enable_caching=False)
    request = manager.request("r", range(5))
    equal(manager.need(request, 5, encoder=20), 2)
    answer = manager.allocate_slots(request, 5, num_encoder_tokens=20)
    manager.same(answer, ((1, 2), ()), "the answer")
    alone = bench.manager(1, ENCODER, enable_caching=False)
    answer = alone.allocate_slots(alone.request("r", range(5)), 5)
    equal(answer, KVCacheBlocks(((),)), "alone, without a block")
