"""Random schedules for examples/tiny_engine: every token and logit beside plain recomputing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from random import Random

import torch

import kvfast
from examples.tiny_engine.engine import Engine, EngineConfig
from examples.tiny_engine.model import Model, ModelConfig, generated
from kvfast.device import Backend
from kvspec.interface import Implementation

TOLERANCE = 1e-9
"""Logits are float64 of size 10; another order of summation changes them by 1e-14."""

MODELS = (ModelConfig((None, None)), ModelConfig((None, 5, None, 5)))


class WrongError(AssertionError):
    """A token, a logit, a table or a block that is not as it must be."""


@cache
def model_of(config: ModelConfig) -> Model:
    return Model(config)


@cache
def expected(
    config: ModelConfig, prompt: tuple[int, ...], num: int
) -> tuple[list[int], torch.Tensor]:
    """Return what a run without any cache generates."""
    return generated(model_of(config), prompt, num)


@dataclass
class Schedule:
    """Requests with common beginnings that arrive in the course of a run."""

    seed: int
    backend: Backend | None = None
    num_resident_steps: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.random = random = Random(self.seed)
        self.model = MODELS[self.seed % len(MODELS)]
        self.config = EngineConfig(
            num_blocks=random.choice([15, 15, 18, 40]),
            max_running=random.randint(1, 4),
            max_tokens=random.choice([12, 16, 40]),
            num_drafts=random.choice([0, 0, 1, 2]) if not self.num_resident_steps else 0,
            num_host_blocks=random.choice([0, 3, 20, 60]) if not self.num_resident_steps else 0,
            num_resident_steps=self.num_resident_steps,
            backend=self.backend,
            check_invariants=True,
        )
        vocabulary = self.model.vocabulary
        texts = [[random.randrange(vocabulary) for _ in range(20)] for _ in range(4)]
        self.requests = []
        for number in range(10):
            text = random.choice(texts)
            prompt = text[: random.choice([1, 3, 8, 11, 15, 18])]
            if random.random() < 0.3:
                prompt = [*prompt, random.randrange(vocabulary)]
            self.requests.append((f"r{number}", prompt, random.randint(1, 24 - len(prompt))))

    def run(self, implementation: Implementation | None = None) -> None:
        engine = Engine(
            model_of(self.model), implementation or kvfast.implementation(), self.config
        )
        todo, made = list(self.requests), []
        for _ in range(2000):
            if not todo and engine.is_idle:
                break
            while todo and self.random.random() < 0.4:
                made.append((todo[0], engine.add(*todo.pop(0))))
            engine.step()
            if difference := engine.paged.tables.difference(engine.batched):
                raise WrongError(str(difference))
        else:
            raise WrongError("it does not end")
        for (name, prompt, num), one in made:
            tokens, rows = expected(self.model, tuple(prompt), num)
            if one.generated != tokens:
                raise WrongError(f"{name}: {one.generated}, not {tokens}")
            if not torch.allclose(torch.stack(one.rows), rows, rtol=0, atol=TOLERANCE):
                raise WrongError(f"{name}: logits")
        if engine.manager.num_free_blocks != self.config.num_blocks - 1:
            raise WrongError("blocks are not free")
        self.count(engine)

    def count(self, engine: Engine) -> None:
        stats = engine.manager.make_prefix_cache_stats()
        self.counts["hit tokens"] = 0 if stats is None else stats.hits_tokens
        self.counts["preemptions"] = engine.num_preemptions
        self.counts["drafts accepted"] = engine.num_accepted
        self.counts["drafts rejected"] = engine.num_rejected
        self.counts["prompts in chunks"] = engine.num_chunks
        self.counts["resident steps"] = engine.num_resident_steps
        if engine.host is not None:
            self.counts["tokens loaded"] = engine.host.num_loaded_tokens
            self.counts["blocks copied out"] = engine.host.num_copies_out
