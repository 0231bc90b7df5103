"""SGLang's `Scheduler` without a model: its own admission and bookkeeping, one request at a time.

The object is SGLang's class with the members that its queue loop reads. Stand-ins are few: a KV
pool of windows without memory, streams of output and counters that do nothing, and page-locked
memory, which a CPU does not have.
"""

from __future__ import annotations

import importlib
import logging
import warnings
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from kvcheck.adapters.sglang.host import HostCopies
from kvspec.errors import KVSpecError, UnsupportedError
from kvspec.tree import TreeConfig

_MODULES: Mapping[str, str] = {
    "allocation": "sglang.srt.mem_cache.allocation",
    "allocator": "sglang.srt.mem_cache.allocator",
    "base": "sglang.srt.mem_cache.base_prefix_cache",
    "common": "sglang.srt.mem_cache.common",
    "components": "sglang.srt.mem_cache.unified_cache.component_type",
    "context": "sglang.srt.runtime_context",
    "environ": "sglang.srt.environ",
    "host_common": "sglang.srt.mem_cache.pool_host.common",
    "init_params": "sglang.srt.mem_cache.cache_init_params",
    "logits": "sglang.srt.layers.logits_processor",
    "mamba": "sglang.srt.configs.mamba_utils",
    "plain": "sglang.srt.mem_cache.radix_cache",
    "policy": "sglang.srt.managers.schedule_policy",
    "pools": "sglang.srt.mem_cache.memory_pool",
    "ratio": "sglang.srt.managers.scheduler_components.new_token_ratio_tracker",
    "results": "sglang.srt.managers.scheduler_components.batch_result_processor",
    "roles": "sglang.srt.disaggregation.utils",
    "sampling": "sglang.srt.sampling.sampling_params",
    "schedule_batch": "sglang.srt.managers.schedule_batch",
    "scheduler": "sglang.srt.managers.scheduler",
    "server_args": "sglang.srt.server_args",
    "sessions": "sglang.srt.session.session_controller",
    "spec": "sglang.srt.speculative.spec_info",
    "swa": "sglang.srt.mem_cache.allocator.swa",
    "swa_pool": "sglang.srt.mem_cache.base_swa_memory_pool",
    "torch": "torch",
    "unified": "sglang.srt.mem_cache.unified_radix_cache",
    "utils": "sglang.srt.utils.common",
}

MAX_TOKENS, MAX_ROWS = 4096, 32
"""Tokens of a request, and requests that may run without states, at most."""


class SGLangUnavailableError(KVSpecError, ImportError):
    """SGLang, or something that it imports, cannot be imported."""

    def __init__(self, problem: str) -> None:
        super().__init__(
            f"SGLang cannot be imported ({problem}); this adapter was written for SGLang 0.5.23:"
            " pip install sglang==0.5.23 (no GPU is needed)"
        )
        self.problem = problem


@dataclass(frozen=True)
class Options:
    """How the server is started.

    - `core`: tree of `UnifiedRadixCache` in Python or Rust, or `plain` for `RadixCache`.
    - `has_extra_buffer`: states are left at a grid of positions in a slot beside the working one.
    - `in_session`: each request is one of a session.
    - `has_host`: nodes are copied to the host (HiCache).
    - `keeps_sessions`: what sessions have stored is evicted last.
    """

    core: str = "python"
    has_extra_buffer: bool = False
    in_session: bool = False
    keeps_sessions: bool = False
    has_host: bool = False

    @property
    def states_per_request(self) -> int:
        """Slots of states for each request that may run, as a server counts them."""
        return 4 if self.has_extra_buffer else 3


class Engine:
    """SGLang's modules (`m`), the pools and the tree of one server, and its scheduler."""

    def __init__(self, config: TreeConfig, options: Options) -> None:
        self.m = load_modules()
        self.config, self.options = config, options
        has_buffer = self.has_buffer = options.has_extra_buffer and config.num_states > 0
        self.page = config.page_size_tokens
        self.grid = max(2, self.page)  # a model's kernels have one of 64 tokens or more
        arguments = self.m.server_args.ServerArgs(
            model_path="dummy",
            device="cpu",
            attention_backend="torch_native",
            page_size=self.page,
            pp_max_micro_batch_size=64,
            disable_overlap_schedule=True,
            mamba_radix_cache_strategy="extra_buffer" if has_buffer else "no_buffer",
            mamba_track_interval=self.grid,
            enable_hierarchical_cache=config.num_host_slots > 0,
            hicache_ratio=config.num_host_slots / max(1, config.num_slots) or None,
            hicache_io_backend="direct",
            hicache_mem_layout="layer_first",
        )
        arguments._mamba_cache_chunk_size = self.grid
        self._context = self.m.context.create_context(arguments, role="scheduler")
        with self.active():
            self.rows = self._make_rows()
            self.slots = self._make_slots()
            self.tree, parameters = self._make_tree()
            self.host = None
            if config.num_host_slots:
                self.m.host_common._cuda_host_register = lambda *_, **__: None
                self.tree.init_hicache(arguments, parameters)
                self.host = HostCopies(self.tree)
            self.scheduler = self._make_scheduler()

    @property
    def copies(self) -> HostCopies:
        if self.host is None:
            raise UnsupportedError("copies on the host", "sglang without HiCache")
        return self.host

    @contextmanager
    def active(self) -> Iterator[None]:
        """Let SGLang's code read this server's configuration, and page-lock no memory."""
        torch = self.m.torch
        pin, torch.Tensor.pin_memory = torch.Tensor.pin_memory, lambda tensor, *_: tensor
        try:
            with ExitStack() as stack:
                stack.enter_context(self.m.context.use_context(self._context))
                stack.enter_context(self.m.environ.envs.SGLANG_SWA_EVICTION_INTERVAL.override(1))
                yield
        finally:
            torch.Tensor.pin_memory = pin

    def _make_rows(self) -> Any:
        """Make as many rows as there may be running requests."""
        common = {"max_context_len": MAX_TOKENS, "device": "cpu", "enable_memory_saver": False}
        if not self.config.num_states:
            return self.m.pools.ReqToTokenPool(size=MAX_ROWS, **common)
        mamba = self.m.mamba
        sizes = ("intermediate_size", "n_groups", "num_heads", "head_dim", "state_size")
        shape = mamba.Mamba2StateShape.create(
            tp_world_size=1, conv_kernel=2, **dict.fromkeys(sizes, 1)
        )
        size = self.config.num_states // self.options.states_per_request
        return self.m.pools.HybridReqToTokenPool(
            size=size,
            mamba_size=self.config.num_states,
            mamba_spec_state_size=size,
            cache_params=mamba.Mamba2CacheParams(shape=shape, layers=[0]),
            mamba_layer_ids=[0],
            enable_mamba_extra_buffer=self.has_buffer,
            enable_overlap_schedule=False,
            **common,
        )

    def _make_slots(self) -> Any:
        size, page, m = self.config.num_slots, self.page, self.m
        common = {"dtype": m.torch.float16, "device": "cpu", "need_sort": False}
        kvcache = None
        if self.config.num_host_slots:
            kvcache = m.pools.MHATokenToKVPool(
                size=size,
                page_size=page,
                dtype=m.torch.float16,
                head_num=1,
                head_dim=8,
                layer_num=1,
                device="cpu",
                enable_memory_saver=False,
            )
        if self.config.window_tokens:
            slots = m.swa.SWATokenToKVPoolAllocator(
                size=size,
                size_swa=self.config.num_window_slots,
                page_size=page,
                kvcache=_window_pool(m.swa_pool.BaseSWAKVPool),
                **common,
            )
            halves = [slots.full_attn_allocator, slots.swa_attn_allocator]
        elif page == 1:
            return m.allocator.TokenToKVPoolAllocator(size, kvcache=kvcache, **common)
        else:
            slots = m.allocator.PagedTokenToKVPoolAllocator(size, page, kvcache=kvcache, **common)
            halves = [slots]
        for half in halves:
            half.use_triton_kernels = False  # Triton has no CPU back end
        return slots

    def _make_tree(self) -> tuple[Any, Any]:
        config, kinds = self.config, self.m.components.ComponentType
        parts = [kinds.FULL]
        parts += [kinds.SWA] if config.window_tokens else []
        parts += [kinds.MAMBA] if config.num_states else []
        is_plain = self.options.core == "plain"
        parameters = self.m.init_params.CacheInitParams(
            disable=False,
            req_to_token_pool=self.rows,
            token_to_kv_pool_allocator=self.slots,
            page_size=self.page,
            tree_components=tuple(parts),
            sliding_window_size=config.window_tokens or None,
            enable_mamba_extra_buffer=self.has_buffer,
            eviction_policy=config.order,
            eviction_policy_config=(
                {"threshold": config.tail_tokens} if config.order == "tlru" else None
            ),
            enable_session_radix_cache=self.options.keeps_sessions,
            tree_core_backend=None if is_plain else self.options.core,
        )
        made = self.m.plain.RadixCache if is_plain else self.m.unified.UnifiedRadixCache
        return made(parameters), parameters

    def _make_scheduler(self) -> Any:
        m, model = self.m, _model(self.grid)
        quiet = SimpleNamespace(
            pending_member_rows=lambda _: 0,
            has_waiting_grammars=lambda: False,
            _get_num_pending_tokens=lambda **_: 0,
            model_runner=SimpleNamespace(attn_backend=SimpleNamespace(), prefill_aware_swa=False),
        )
        scheduler = m.scheduler.Scheduler.__new__(m.scheduler.Scheduler)
        unused = dict.fromkeys(_UNUSED)
        off = dict.fromkeys(_OFF, False)
        vars(scheduler).update(
            unused,
            **off,
            tree_cache=self.tree,
            req_to_token_pool=self.rows,
            token_to_kv_pool_allocator=self.slots,
            page_size=self.page,
            model_config=model,
            is_hybrid_swa=bool(self.config.window_tokens),
            is_hybrid_ssm=bool(self.config.num_states),
            enable_hierarchical_cache=self.host is not None,
            spec_algorithm=m.spec.SpeculativeAlgorithm.NONE,
            disaggregation_mode=m.roles.DisaggregationMode.NULL,
            policy=m.policy.SchedulePolicy("fcfs", self.tree, False, False, False),
            new_token_ratio_tracker=m.ratio.NewTokenRatioTracker.from_config(),
            waiting_queue=[],
            result_queue=deque(),
            processed_tokens_counter=0,
            max_prefill_tokens=MAX_TOKENS,
            max_prefill_bs=0,
            max_running_requests=64,
            priority_scheduling_preemption_threshold=0,
            **dict.fromkeys(
                ("beam_coordinator", "grammar_manager", "load_inquirer", "tp_worker"), quiet
            ),
        )
        self.results = m.results.SchedulerBatchResultProcessor(
            **{
                name: getattr(scheduler, name, None)
                for name in m.results.SchedulerBatchResultProcessor.__dataclass_fields__
            }
        )
        return scheduler


_UNUSED = (
    *("chunked_req", "dllm_config", "dynamic_chunk_sizer", "hisparse_coordinator", "last_batch"),
    *("lora_drainer", "min_free_slots_delayer", "prefill_delayer", "truncation_align_size"),
    *("scheduler_stage_metrics", "chunked_prefill_size", "draft_worker", "metrics_collector"),
)
_OFF = (
    *("enable_hicache_storage", "enable_lmcache", "enable_lora"),
    *("enable_overlap", "enable_overlap_mlx", "enable_priority_preemption"),
    *("enable_priority_scheduling", "enable_unified_cache_external_linker", "is_mixed_chunk"),
)


def load_modules() -> Any:
    """Import SGLang's modules. Raises SGLangUnavailableError."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # importing it warns of what a CPU lacks
            logging.getLogger("sglang").setLevel(logging.ERROR)  # that pools are small
            return SimpleNamespace(
                version=importlib.import_module("sglang.version").__version__,
                **{name: importlib.import_module(path) for name, path in _MODULES.items()},
            )
    except ImportError as error:
        raise SGLangUnavailableError(f"{type(error).__name__}: {error}") from error


def _window_pool(base: Any) -> Any:
    """Make a pool of windows that only has the map from slots to window slots."""

    def register(pool: Any, mapping: Any) -> None:
        pool.full_to_swa_index_mapping = mapping

    members = {
        "__init__": lambda pool: None,
        "register_mapping": register,
        "translate_loc_from_full_to_swa": lambda pool, slots: pool.full_to_swa_index_mapping[slots],
    }
    lacking = dict.fromkeys(base.__abstractmethods__)
    return type("WindowPool", (base,), lacking | members)()


def _model(grid: int) -> Any:
    return SimpleNamespace(
        is_encoder_decoder=False,
        vocab_size=2**31,
        hf_text_config=SimpleNamespace(mamba_chunk_size=grid),
        self_opened_think_start_ids=None,
        think_end_ids=None,
    )
