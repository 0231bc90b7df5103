"""KV-CFG: what can be configured, what is derived, and what is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from kvspec.config import CustomSpec, SpecRegistry
from kvspec.errors import ConfigError, UnsupportedError
from kvspec.specs import FullAttentionSpec, LayerSpec, MLAAttentionSpec
from tests.rules.builders import MakeManager, MakeRequest, admit, blocks_of, full, hit_of
from tests.rules.specs import mamba, sliding


def refused_field(make_manager: MakeManager, **config: Any) -> str:
    """The field that the ConfigError of this configuration names."""
    with pytest.raises(ConfigError) as caught:
        make_manager(**config)
    return caught.value.field


@pytest.mark.rule("KV-CFG-1")
def test_specs_are_equal_values_of_one_type() -> None:
    """Equal fields make one specification; another field, or another type, makes two."""
    assert full(16) == full(16)
    assert hash(full(16)) == hash(full(16))
    assert full(16) != full(16, head_size=16)
    assert FullAttentionSpec(16, 1, 8, "float16") != MLAAttentionSpec(16, 1, 8, "float16")


@pytest.mark.rule("KV-CFG-1")
def test_specs_are_frozen() -> None:
    """A spec cannot be changed after it was made, and is checked when it is made."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        full().block_size = 8  # type: ignore[misc]  # the point of the test
    with pytest.raises(ConfigError) as caught:
        full(0)
    assert caught.value.field == "block_size"


@dataclasses.dataclass(frozen=True)
class RingSpec(LayerSpec):
    """A layer from outside the contract."""


@pytest.mark.rule("KV-CFG-1")
def test_a_custom_spec_counts_as_what_it_is_managed_as(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """A ring of 8 tokens, managed as full attention of 4, has blocks of 4 tokens."""
    registry = SpecRegistry((CustomSpec(RingSpec, lambda spec: full(spec.block_size // 2)),))
    manager = make_manager(6, specs=[RingSpec(8)], registry=registry)
    assert manager.config.scheduler_block_size_tokens == 4
    request = make_request(manager, "r", range(9))
    admit(manager, request)
    assert blocks_of(manager, request) == [1, 2, 3]
    assert hit_of(manager, make_request(manager, "s", range(9))) == [1, 2]
    with pytest.raises(UnsupportedError):
        make_manager(6, specs=[RingSpec(8)])


@pytest.mark.rule("KV-CFG-2", "KV-POOL-12", "KV-ERR-1")
def test_a_pool_of_the_null_block_refuses_everything(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """With 1 block every request that needs one is refused, and usage is 0.0."""
    manager = make_manager(1, 4)
    assert manager.num_free_blocks == 0
    assert admit(manager, make_request(manager, "r", [1])) is None
    assert manager.usage == 0.0


@pytest.mark.rule("KV-CFG-2", "KV-ERR-5")
def test_a_pool_has_a_block(make_manager: MakeManager) -> None:
    """0 blocks are refused."""
    assert refused_field(make_manager, num_blocks=0) == "num_blocks"


@pytest.mark.rule("KV-CFG-3", "KV-ERR-5")
def test_caching_needs_a_group(make_manager: MakeManager) -> None:
    """No group and caching on: an error; with caching off: a manager."""
    assert refused_field(make_manager, specs=[]) == "kv_cache.groups"
    make_manager(specs=[], enable_caching=False)


@pytest.mark.rule("KV-CFG-4")
@pytest.mark.parametrize("ranks", [{"dcp_world_size": 2}, {"pcp_world_size": 2}])
def test_with_one_group_the_scheduler_block_size_is_the_span(
    make_manager: MakeManager, ranks: dict[str, int]
) -> None:
    """Block size 16 on 2 ranks: 32, given or not; 16 is an error."""
    assert make_manager(block_size=16, **ranks).config.scheduler_block_size_tokens == 32
    make_manager(block_size=16, scheduler_block_size_tokens=32, **ranks)
    field = refused_field(make_manager, block_size=16, scheduler_block_size_tokens=16, **ranks)
    assert field == "scheduler_block_size_tokens"


@pytest.mark.rule("KV-CFG-4", "KV-CFG-5")
def test_with_several_groups_the_scheduler_block_size_is_their_lcm(
    make_manager: MakeManager,
) -> None:
    """16 and 24 give 48, and with caching off the hash block size equals it, whatever is given."""
    several: dict[str, Any] = {"specs": [full(16), full(24)], "enable_caching": False}
    config = make_manager(**several, hash_block_size_tokens=4).config
    assert (config.scheduler_block_size_tokens, config.hash_block_size_tokens) == (48, 48)
    make_manager(**several, scheduler_block_size_tokens=48)
    for given in (24, 96):
        field = refused_field(make_manager, **several, scheduler_block_size_tokens=given)
        assert field == "scheduler_block_size_tokens"


@pytest.mark.rule("KV-CFG-5", "KV-CFG-4")
def test_with_several_groups_hashes_end_where_every_block_ends(make_manager: MakeManager) -> None:
    """16 and 24 give 8 tokens per hash; 4 is legal, 16 is not."""
    several: dict[str, Any] = {"specs": [full(16), full(24)]}
    config = make_manager(**several).config
    assert (config.scheduler_block_size_tokens, config.hash_block_size_tokens) == (48, 8)
    given = make_manager(**several, hash_block_size_tokens=4).config
    assert given.hash_block_size_tokens == 4
    field = refused_field(make_manager, **several, hash_block_size_tokens=16)
    assert field == "hash_block_size_tokens"


@pytest.mark.rule("KV-CFG-4")
@pytest.mark.parametrize(
    ("given", "size"),
    [
        ({}, 1),
        ({"hash_block_size_tokens": 8}, 8),
        ({"scheduler_block_size_tokens": 16, "hash_block_size_tokens": 8}, 16),
    ],
)
def test_without_a_group_the_given_size_is_taken(
    make_manager: MakeManager, given: dict[str, int], size: int
) -> None:
    """The scheduler block size, else the hash block size, else 1."""
    config = make_manager(specs=[], enable_caching=False, **given).config
    assert config.scheduler_block_size_tokens == size


@pytest.mark.rule("KV-CFG-5")
@pytest.mark.parametrize("caching", [True, False])
def test_with_one_group_a_given_hash_block_size_is_ignored(
    make_manager: MakeManager, caching: bool
) -> None:
    """One group with block size 16: 16, also when 4 is given."""
    manager = make_manager(block_size=16, hash_block_size_tokens=4, enable_caching=caching)
    assert manager.config.hash_block_size_tokens == 16


@pytest.mark.rule("KV-CFG-6")
@pytest.mark.parametrize("field", ["dcp_world_size", "pcp_world_size"])
def test_context_parallelism_needs_exactly_one_group(make_manager: MakeManager, field: str) -> None:
    """One MLA group is legal; two groups or none are an error that names the world size above 1."""
    ranks: dict[str, Any] = {field: 2}
    make_manager(specs=[MLAAttentionSpec(4, 1, 8, "float16")], **ranks)
    for specs in ([], [full(), full()]):
        assert refused_field(make_manager, specs=specs, enable_caching=False, **ranks) == field


@pytest.mark.rule("KV-CFG-6")
def test_context_parallelism_needs_full_attention(make_manager: MakeManager) -> None:
    """A sliding-window group on 2 ranks is an error."""
    assert refused_field(make_manager, specs=[sliding(4, 8)], dcp_world_size=2) == "dcp_world_size"


@pytest.mark.rule("KV-CFG-7")
@pytest.mark.parametrize("interval", [32, 0, -1, 3])
def test_retention_needs_a_window(make_manager: MakeManager, interval: int) -> None:
    """One full-attention group and an interval: an error, whatever the number."""
    field = refused_field(make_manager, block_size=16, retention_interval_tokens=interval)
    assert field == "retention_interval_tokens"


@pytest.mark.rule("KV-CFG-7")
@pytest.mark.parametrize("spec", [sliding(16, 8), mamba(16)], ids=["sliding", "mamba"])
def test_retention_is_a_multiple_of_the_scheduler_block_size(
    make_manager: MakeManager, spec: LayerSpec
) -> None:
    """With a window or Mamba state 0 and 32 are legal; -16 and 24 are not."""
    for interval in (None, 0, 32):
        make_manager(specs=[spec], retention_interval_tokens=interval)
    for interval in (-16, 24):
        field = refused_field(make_manager, specs=[spec], retention_interval_tokens=interval)
        assert field == "retention_interval_tokens"


@pytest.mark.rule("KV-CFG-8", "KV-FULL-3")
@pytest.mark.parametrize(
    ("use_eagle", "flagged", "hit"),
    [
        (False, (), [1, 2]),
        (True, (), [1]),
        (False, (0,), [1]),
        (True, (0,), [1]),
    ],
)
def test_use_eagle_flags_every_group_when_none_is(
    make_manager: MakeManager,
    make_request: MakeRequest,
    use_eagle: bool,
    flagged: tuple[int, ...],
    hit: list[int],
) -> None:
    """Not flagged: it drops with `use_eagle` only. Flagged: it drops in both cases."""
    manager = make_manager(6, 4, use_eagle=use_eagle, eagle_groups=flagged)
    admit(manager, make_request(manager, "first", range(9)))
    assert hit_of(manager, make_request(manager, "r", range(9))) == hit


@pytest.mark.rule("KV-CFG-8", "KV-FULL-3")
@pytest.mark.parametrize(
    ("use_eagle", "flagged", "lengths"),
    [
        (False, (), (12, 12)),
        (True, (), (8, 8)),
        (False, (1,), (12, 8)),
        (True, (1,), (12, 8)),
    ],
)
def test_one_flag_keeps_use_eagle_from_flagging_the_others(
    make_manager: MakeManager,
    make_request: MakeRequest,
    use_eagle: bool,
    flagged: tuple[int, ...],
    lengths: tuple[int, int],
) -> None:
    """Of two groups with three blocks cached, only the flagged one drops; without a flag both."""
    specs = [full(4), full(4, head_size=16)]
    manager = make_manager(12, specs=specs, use_eagle=use_eagle, eagle_groups=flagged)
    admit(manager, make_request(manager, "first", range(13)))
    hits = manager.find_longest_cache_hit_per_group(make_request(manager, "r", range(13)), 12)
    assert hits.hit_lengths_tokens == lengths
