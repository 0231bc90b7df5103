"""The names that the lines of a story know, besides what the world offers."""

from __future__ import annotations

import copy
import gc
import math
import pickle
from array import array
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from kvspec.batched import StepOutput, StepPlan
from kvspec.blocks import KVCacheBlocks
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig, SpecRegistry
from kvspec.policy import Policy
from kvspec.request import LoRA, MultimodalItem, PromptEmbeddings, RequestInput, RequestStatus
from kvspec.specs import SPEC_TYPES
from tests.fuzz import values
from tests.fuzz.tamper import tamper

_CLASSES = (
    *SPEC_TYPES, StepOutput, StepPlan, KVCacheBlocks, KVCacheConfig, KVCacheGroup, ManagerConfig,
    SpecRegistry, Policy, LoRA, MultimodalItem, PromptEmbeddings, RequestInput, RequestStatus,
)  # fmt: skip

KNOWN: Mapping[str, Any] = MappingProxyType(
    {
        **{name: value for name, value in vars(values).items() if not name.startswith("_")},
        **{known.__name__: known for known in _CLASSES},
        **{tool.__name__: tool for tool in (copy, gc, pickle, array, replace, tamper)},
        "np": np,
        "inf": math.inf,
        "nan": math.nan,
    }
)
