"""kvref, which notes what the driver asks, and whose flaws can be switched on."""

from __future__ import annotations

from typing import Any

from kvref.implementation import ReferenceImplementation
from kvref.manager import ReferenceManager
from kvspec.blocks import KVCacheBlocks, PrefixHit
from kvspec.config import ManagerConfig
from kvspec.interface import KVCacheManager
from kvspec.request import Request


class NotingManager(ReferenceManager):
    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.steps = 0
        self.noted: list[str] = []
        self.refuse_all = False
        self.overlong_hit = False

    def new_step_starts(self) -> None:
        self.steps += 1
        super().new_step_starts()

    def get_computed_blocks(self, request: Request) -> PrefixHit:
        hit = super().get_computed_blocks(request)
        self.noted.append(f"look {request.request_id} {hit.hit_length_tokens}")
        return PrefixHit(hit.blocks, request.num_tokens) if self.overlong_hit else hit

    def allocate_slots(
        self, request: Request, num_new_tokens: int, **options: Any
    ) -> KVCacheBlocks | None:
        has_scheduled = options.get("has_scheduled_reqs", True)
        self.noted.append(f"ask {request.request_id} {num_new_tokens} {has_scheduled}")
        return (
            None if self.refuse_all else super().allocate_slots(request, num_new_tokens, **options)
        )


class Noted(ReferenceImplementation):
    """Makes such managers, without audits, and keeps the last one for a test to look at."""

    def __init__(self, *, refuse_all: bool = False, overlong_hit: bool = False) -> None:
        super().__init__()
        self.refuse_all = refuse_all
        self.overlong_hit = overlong_hit
        self.manager: NotingManager | None = None

    def create(self, config: ManagerConfig, **options: Any) -> KVCacheManager:
        self.manager = NotingManager(config, options.get("clock"), self.pool_class)
        self.manager.refuse_all = self.refuse_all
        self.manager.overlong_hit = self.overlong_hit
        return self.manager


def refuser() -> Noted:
    return Noted(refuse_all=True)
