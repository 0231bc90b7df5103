"""Examples of planning: what cannot be planned is named with its value."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from kvcheck.play.verdicts import Level
from kvcheck.rules.bench import Bench
from kvcheck.rules.example import cases, example
from kvcheck.rules.judging import holds, raises
from kvcheck.rules.plan_specs import GIB, large, latent, named, settings, sliding, state
from kvspec.config import KVCacheConfig, KVCacheGroup
from kvspec.errors import ConfigError
from kvspec.planning import Planner
from kvspec.specs import FullAttentionSpec, LayerSpec, MambaSpec

GROUPS = (KVCacheGroup(("0",), large()),)
LAYOUTS = (KVCacheConfig(9, GROUPS), KVCacheConfig(8, GROUPS))
Call = Callable[[Planner], object]


@cases(
    (large(page_size_padded=65_535), "page_size_padded", 65_535),
    (state(128, page_size_padded=127), "page_size_padded", 127),
    (large(kv_quant_mode="HALF"), "kv_quant_mode", "HALF"),
    (latent(compress_ratio=3), "compress_ratio", 3),
    (LayerSpec(16), "spec", "LayerSpec"),
    (MambaSpec(16, (), ()), "page_size_bytes", 0),
    (FullAttentionSpec(16, 1, 1, "uint8", kv_quant_mode="NVFP4"), "page_size_bytes", 0),
)
@example("KV-PLAN-1", "KV-ERR-5", level=Level.SAFETY, since="0.2")
def a_page_that_cannot_be_is_refused(
    bench: Bench, spec: LayerSpec, field: str, value: object
) -> None:
    with raises(ConfigError, field=field, value=value) as caught:
        bench.planner.spec_properties(spec, settings())
    holds(caught.value.allowed)


@cases(
    ((), "specs", ()),
    ((large(), sliding(8)), "specs", "SlidingWindowSpec"),
    ((large(), large(head_size=64)), "head_size", 64),
    ((latent(), latent(block_size=32)), "block_size", 32),
    ((latent(128), latent(576)), "page_size_bytes", 18_432),
    (
        (large(sliding_window=512), large(sliding_window=256)),
        "sliding_window",
        [256, 512],
    ),
    (
        (large(attention_chunk_size=64), large(attention_chunk_size=32)),
        "attention_chunk_size",
        [32, 64],
    ),
    (
        (large(sliding_window=512), large(attention_chunk_size=64)),
        "attention_chunk_size",
        64,
    ),
)
@example("KV-PLAN-2", "KV-ERR-5", level=Level.SAFETY)
def specs_that_do_not_merge_are_named(
    bench: Bench, specs: tuple[LayerSpec, ...], field: str, value: object
) -> None:
    with raises(ConfigError, field=field, value=value) as caught:
        bench.planner.merge(specs)
    holds(caught.value.allowed)


def asked(name: str, *arguments: object) -> Call:
    """A call of the planner."""
    return lambda planner: getattr(planner, name)(*arguments)


plan = partial(asked, "plan")


@cases(
    (asked("unify_hybrid", named(large(), state(64))), "disable_hybrid", True),
    (plan((named(large()),), settings(), (GIB, 7)), "available_memory_bytes", (GIB, 7)),
    (plan((named(large()),), settings(), (0,)), "available_memory_bytes", 0),
    (
        plan((named(large()),), settings(original_max_model_len_tokens=-1), (1,)),
        "available_memory_bytes",
        (1,),
    ),
    (
        plan((named(large()), named(latent())), settings(), (GIB, GIB)),
        "workers, layer 0",
        latent(),
    ),
    (asked("scheduler_config", ()), "configs", ()),
    (asked("scheduler_config", LAYOUTS), "num_blocks", 8),
    (asked("max_memory_usage_bytes", named(LayerSpec(16)), settings()), "spec", "LayerSpec"),
)
@example("KV-PLAN-11", "KV-ERR-5", level=Level.SAFETY)
def what_cannot_be_planned_is_named_with_its_value(
    bench: Bench, call: Call, field: str, value: object
) -> None:
    bench.here("the value of an error as it was given")
    with raises(ConfigError, field=field, value=value) as caught:
        call(bench.planner)
    holds(caught.value.allowed)


@example("KV-PLAN-7")
def the_error_names_the_types_that_no_single_group_holds(bench: Bench) -> None:
    """Each once; a window has become full attention by then."""
    with raises(ConfigError) as caught:
        bench.planner.unify_hybrid(named(large(), state(64), state(128), sliding(8)))
    holds("FullAttentionSpec" in str(caught.value) and "MambaSpec" in str(caught.value))
    holds("Window" not in str(caught.value))
