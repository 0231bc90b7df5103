"""vLLM's scheduler without a model: a made-up configuration, no device and no weights."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from types import MappingProxyType, SimpleNamespace
from typing import Any
from unittest.mock import patch
from zlib import crc32

import torch
from vllm import platforms
from vllm.config import (
    CacheConfig,
    KVEventsConfig,
    KVTransferConfig,
    LoRAConfig,
    ModelConfig,
    ObservabilityConfig,
    ParallelConfig,
    SchedulerConfig,
    SpeculativeConfig,
    VllmConfig,
)
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, MultiModalKwargsItem, PlaceholderRange
from vllm.platforms.cpu import CpuPlatform
from vllm.pooling_params import PoolingParams
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1 import kv_cache_interface
from vllm.v1.core.encoder_cache_manager import EncoderCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, KVCacheTensor
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from examples.vllm.serving import made_up
from kvfast.engines.vllm.versions import is_since

END = 511
"""The token that ends a request."""
TABLES = MappingProxyType(tomllib.loads(Path(__file__).with_name("setups.toml").read_text("utf-8")))
OWN: Mapping[str, Mapping[str, Any]] = TABLES["connectors"]
"""vLLM's own connectors, with their options."""
SECOND_RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
"""1 for the model runner that 0.33 has on devices by default."""
RETENTION = "VLLM_PREFIX_CACHE_RETENTION_INTERVAL"
"""vLLM 0.24 has no other switch for sparse retention."""
DENSE = -1
"""No sparse retention, in either version; without a word 0.33 keeps boundaries alone."""


@dataclass(frozen=True)
class Setup:
    """The options of a scheduler. `specs`: of vLLM, one for each group of layers.

    `loads`: a KV connector with these loads (`examples.vllm.connector`), or one of vLLM's own, by
    its name in `OWN`; and `fails`: what happens to requests whose load failed. `encoder_cache`:
    tokens of images and sounds that it holds.
    `has_modules`: each draft has its own module, which reads further ahead; of 0.33.
    `follows_lives`: of all blocks, vLLM's `kv_cache_metrics`. `has_reports`: some requests want
    their hits among the events, and `drops_blocks`: EAGLE without hash look-ahead, which 0.33 can
    do. `most_of_prompt`: tokens of a long prompt in one step, 0 for any number; `is_adaptive`: more
    if there are few requests, in 0.33. `throttles`: some steps may not begin a prompt.
    `has_logprobs`: some requests want those of their tokens. `pools`: no token is sampled.
    `is_chunked`: a prompt may take several steps.
    """

    specs: tuple[Any, ...]
    num_blocks: int
    block_size: int
    hash_block_size: int
    max_model_len: int = 256
    max_num_seqs: int = 16
    max_num_batched_tokens: int = 64
    enable_caching: bool = True
    num_drafts: int = 0
    use_eagle: bool = False
    has_modules: bool = False
    is_async: bool = False
    has_events: bool = False
    watermark: float = 0.0
    policy: str = "fcfs"
    mamba_mode: str = "none"
    retention: int | None = None
    has_sessions: bool = False
    has_unusual: bool = False
    loads: str = ""
    fails: str = ""
    whole_loads: bool = False
    encoder_cache: int = 0
    max_adapters: int = 0
    follows_lives: bool = False
    has_reports: bool = False
    drops_blocks: bool = False
    most_of_prompt: int = 0
    is_adaptive: bool = False
    throttles: bool = False
    has_logprobs: bool = False
    pools: bool = False
    is_chunked: bool = True


def prepare() -> None:
    """vLLM on a CPU, whatever its build was made for; the first parent of hashes."""
    platforms._current_platform = CpuPlatform()
    init_none_hash(sha256)


def model_folder() -> str:
    """Return a folder with the configuration of a model that is never run."""
    folder = Path(mkdtemp(prefix="made-up-model-"))
    (folder / "config.json").write_text(json.dumps(made_up("tiny")))
    return str(folder)


def vllm_config(setup: Setup, model: str) -> Any:
    model_config = ModelConfig(
        model=model,
        dtype="float16",
        seed=0,
        skip_tokenizer_init=True,
        runner="pooling" if setup.pools else "generate",
    )
    model_config.max_model_len = setup.max_model_len
    cache = CacheConfig(
        block_size=setup.block_size,
        gpu_memory_utilization=0.9,
        enable_prefix_caching=setup.enable_caching,
    )
    cache.num_gpu_blocks = setup.num_blocks
    cache.mamba_cache_mode = setup.mamba_mode
    drafts = None
    if setup.num_drafts:
        method = "ngram_gpu" if setup.is_async else "ngram"
        drafts = SpeculativeConfig(method=method, num_speculative_tokens=setup.num_drafts)
        if setup.use_eagle:  # its model is nowhere, and the scheduler asks for the name alone
            drafts.method = "eagle"
        if setup.drops_blocks:
            drafts.disable_lookahead_block_hashes = True
    with patch.dict(os.environ):
        if not is_since(33):  # its second runner needs Triton, which no scheduler does
            os.environ.pop(SECOND_RUNNER, None)
        made = VllmConfig(
            model_config=model_config,
            scheduler_config=SchedulerConfig(
                max_num_seqs=setup.max_num_seqs,
                max_num_batched_tokens=setup.max_num_batched_tokens,
                max_model_len=setup.max_model_len,
                enable_chunked_prefill=setup.is_chunked,
                async_scheduling=setup.is_async,
                is_encoder_decoder=False,
                watermark=setup.watermark,
                policy=setup.policy,
                long_prefill_token_threshold=setup.most_of_prompt,
                **({"long_prefill_token_threshold_adaptive": True} if setup.is_adaptive else {}),
            ),
            cache_config=cache,
            parallel_config=ParallelConfig(),
            speculative_config=drafts,
            kv_transfer_config=connector_config(setup) if setup.loads else None,
            lora_config=LoRAConfig(max_loras=setup.max_adapters) if setup.max_adapters else None,
            observability_config=ObservabilityConfig(
                kv_cache_metrics=setup.follows_lives, kv_cache_metrics_sample=1.0
            ),
            kv_events_config=KVEventsConfig(enable_kv_cache_events=True, publisher="null")
            if setup.has_events
            else None,
        )
    made.scheduler_config.async_scheduling = setup.is_async  # the CPU platform turns it off
    if setup.has_modules and made.speculative_config is not None:  # and again no model
        layers = SimpleNamespace(num_nextn_predict_layers=setup.num_drafts)
        made.speculative_config.method = "mtp"
        made.speculative_config.draft_model_config = SimpleNamespace(hf_config=layers)
    return made


def connector_config(setup: Setup) -> Any:
    """Return the configuration of a connector that moves nothing, or of vLLM's own."""
    if setup.loads in OWN:
        options = dict(OWN[setup.loads])
        return KVTransferConfig(
            kv_connector=options.pop("name"),
            engine_id="engine",
            kv_role="kv_both",
            kv_connector_extra_config=options,
        )
    return KVTransferConfig(
        kv_connector="MadeUpConnector",
        kv_connector_module_path="examples.vllm.connector",
        kv_role="kv_both",
        kv_load_failure_policy=setup.fails or "fail",
        kv_connector_extra_config={
            "loads": setup.loads,
            "unit": setup.block_size,
            "whole": setup.whole_loads,
        },
    )


def tensors(setup: Setup) -> list[Any]:
    """Return the memory of the blocks, for which vLLM's own connectors ask."""
    if setup.loads not in OWN:
        return []
    page = sum(spec.page_size_bytes for spec in setup.specs)
    names = [f"layer.{i}" for i in range(len(setup.specs))]
    return [KVCacheTensor(page * setup.num_blocks, names, page * setup.num_blocks, page)]


def make_scheduler(scheduler_class: Any, setup: Setup, config: Any) -> Any:
    register_all_kvcache_specs(config)
    os.environ.pop(RETENTION, None)
    if setup.retention not in (None, DENSE):
        os.environ[RETENTION] = str(setup.retention)
    groups = [KVCacheGroupSpec([f"layer.{i}"], spec) for i, spec in enumerate(setup.specs)]
    made = scheduler_class(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            setup.num_blocks, tensors(setup), groups, **_retention(setup)
        ),
        block_size=setup.block_size,
        hash_block_size=setup.hash_block_size,
        log_stats=True,
        structured_output_manager=StructuredOutputManager(config),
    )
    if setup.encoder_cache:  # else asked of a model's processor
        made.encoder_cache_manager = EncoderCacheManager(setup.encoder_cache)
        made.max_num_encoder_input_tokens = setup.encoder_cache
    return made


def _retention(setup: Setup) -> dict[str, Any]:
    """Return the retention interval: part of the cache from 0.29 on; by default 0 from 0.30 on."""
    if not is_since(29):
        return {}
    default = 0 if is_since(30) else None
    interval = None if setup.retention == DENSE else setup.retention or default
    return {"prefix_cache_retention_interval": interval}


@dataclass(frozen=True)
class Item:
    kind: str
    name: str
    offset: int
    length: int

    def feature(self) -> Any:
        place = PlaceholderRange(self.offset, self.length)
        return MultiModalFeatureSpec(MultiModalKwargsItem(), self.kind, self.name, place)


@dataclass(frozen=True)
class Prompt:
    """A request before vLLM has it, so that two schedulers can be given the same."""

    name: str
    tokens: tuple[int, ...]
    max_tokens: int
    salt: str | None = None
    adapter: int = 0
    priority: int = 0
    skips_cache: bool = False
    is_session: bool = False
    items: tuple[Item, ...] = ()
    reports_hits: bool = False
    logprobs: int | None = None

    def request(self, setup: Setup, *hash_lookahead: int) -> Any:
        """vLLM's request. `hash_lookahead`: a number, from 0.33 on."""
        sampling = SamplingParams(
            max_tokens=self.max_tokens,
            ignore_eos=False,
            logprobs=self.logprobs,
            skip_reading_prefix_cache=self.skips_cache,
            extra_args=self.extra(setup),
        )
        sampling.update_from_generation_config({}, END)
        pooling = PoolingParams(task="embed", skip_reading_prefix_cache=self.skips_cache)
        name = f"adapter {self.adapter}"
        return Request(
            request_id=self.name,
            prompt_token_ids=list(self.tokens),
            sampling_params=None if setup.pools else sampling,
            pooling_params=pooling if setup.pools else None,
            arrival_time=0.0,
            cache_salt=self.salt,
            priority=self.priority,
            resumable=self.is_session,
            mm_features=[item.feature() for item in self.items],
            lora_request=LoRARequest(name, self.adapter, name) if self.adapter else None,
            block_hasher=get_request_block_hasher(setup.hash_block_size, sha256, *hash_lookahead)
            if setup.enable_caching
            else None,
        )

    def extra(self, setup: Setup) -> dict[str, Any] | None:
        """Return the wish for a report; beside peers, who brings the prompt or gets it."""
        if setup.loads in ("nixl", "mooncake"):
            role = ("do_remote_prefill", "do_remote_decode", "")[crc32(self.name.encode()) % 3]
            brings = TABLES["peer"] if role == "do_remote_prefill" else {}
            peer = {"transfer_id": self.name, "remote_request_id": self.name, **brings}
            return {"kv_transfer_params": {role: True, **peer}} if role else None
        return {"kv_cache_report_mode": "full"} if self.reports_hits else None


def states(block_size: int, mode: str, **members: Any) -> Any:
    return layer("MambaSpec", block_size, mamba_cache_mode=mode, **members)


def layer(kind: str, block_size: int, **members: Any) -> Any:
    """Return a spec of vLLM's: by default two heads of eight numbers, or a state of as many."""
    given: dict[str, Any] = {"num_kv_heads": 2, "head_size": 8, "dtype": torch.float32}
    if kind == "MambaSpec":
        given = {"shapes": ((2, 8),), "dtypes": (torch.float32,)}
    return getattr(kv_cache_interface, kind)(block_size=block_size, **{**given, **members})
