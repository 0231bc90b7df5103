"""An object that makes offload managers, as an implementation that can do nothing else."""

from __future__ import annotations

from typing import Any, NoReturn

from kvspec.editions import EDITIONS
from kvspec.errors import UnsupportedError
from kvspec.interface import Capabilities
from kvspec.offload import OffloadCapabilities, OffloadConfig, OffloadImplementation, OffloadManager


class OffloadAlone:
    """See `kvspec.interface.Implementation`: a KV-cache manager is an UnsupportedError."""

    planner = None

    def __init__(self, inner: OffloadImplementation) -> None:
        self.inner = inner
        name = str(getattr(inner, "name", type(inner).__name__))
        nothing = frozenset[Any]()
        self.capabilities = Capabilities(name, "0", nothing, nothing, nothing, edition=EDITIONS[-1])

    @property
    def offload_capabilities(self) -> OffloadCapabilities:
        return self.inner.offload_capabilities

    def make_offload(self, config: OffloadConfig) -> OffloadManager:
        return self.inner.make_offload(config)

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise UnsupportedError("KV-cache managers", self.capabilities.name)

    create = make_request = append_tokens = make_hit_rate_window = clone = restore = _refuse
