"""The bench of a check: small managers of one implementation, under its declared choices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from kvcheck.play.elsewhere import is_elsewhere
from kvcheck.play.fit import without_switches
from kvcheck.play.left_out import LeftOut, created
from kvcheck.play.verdicts import Level
from kvcheck.rules.judging import wrong
from kvcheck.rules.managed import Managed
from kvcheck.rules.specs import chunked, cross, encoder_only, full, mamba, sliding
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.errors import UnsupportedError
from kvspec.interface import Feature, Implementation
from kvspec.planning import Planner
from kvspec.policy import Policy
from kvspec.requirements import lacking
from kvspec.saved import load, save
from kvspec.specs import LayerSpec


@dataclass(frozen=True)
class Asked:
    """A planner whose calls leave a check out if the subject does not support them."""

    planner: Planner

    def __getattr__(self, name: str) -> Any:
        call = getattr(self.planner, name)

        def ask(*arguments: Any) -> Any:
            try:
                return call(*arguments)
            except UnsupportedError as error:
                raise LeftOut(str(error)) from None

        return ask


@dataclass(frozen=True)
class Bench:
    """An implementation under its declared choices.

    `oracle`: for random examples to compare with, if any. `level`: how much must be equal.
    `audits`: whether invariants are checked after each call of a subject that shows its state.
    `guards`: at level safety, all that can be seen from outside (`kvcheck.rules.guard`).
    `watches`: nothing else is judged, since results are free at this level.
    """

    subject: Implementation
    policy: Policy
    oracle: Implementation | None = None
    level: Level = Level.IDENTITY
    audits: bool = True
    guards: bool = True
    watches: bool = False

    @property
    def exact(self) -> bool:
        """Whether checks may ask for exact block ids: usual queue order at level identity."""
        usual = self.policy.exact_block_ids and self.policy.unhashed_freed_to == "front"
        return usual and self.level is Level.IDENTITY

    def need(self, *features: Feature) -> None:
        """Leave the check out unless the subject has these."""
        lacks = [feature for feature in features if not self.has(feature)]
        if lacks:
            raise LeftOut(", ".join(lacks))

    def need_usual(self, *choices: str) -> None:
        """Leave the check, or this case of it, out unless these choices are those of the rules."""
        for choice in choices:
            usual = getattr(Policy(), choice)
            if getattr(self.policy, choice) != usual:
                raise LeftOut(f"{choice} {usual}")

    def has(self, feature: Feature) -> bool:
        return feature in self.subject.capabilities.features

    @property
    def is_remote(self) -> bool:
        """Whether the subject is in another process: an error's words and values may differ."""
        return is_elsewhere(self.subject)

    def here(self, why: str) -> None:
        """Leave the check out if the subject is in another process; `why`: what cannot travel."""
        if self.is_remote:
            raise LeftOut(why)

    @property
    def planner(self) -> Planner:
        self.need(Feature.PLANNING)
        planner = self.subject.planner
        if planner is None:
            raise wrong("the planner", "one, since the capabilities name it", None)
        return cast(Planner, Asked(planner))

    def config(
        self,
        num_blocks: int = 6,
        *layers: LayerSpec | int,
        specs: Sequence[LayerSpec] | None = None,
        block_size: int = 4,
        eagle_groups: Sequence[int] = (),
        **options: Any,
    ) -> ManagerConfig:
        """Return a config of one group per layer; a number is full attention of that size.

        Without layers: one full-attention group with blocks of `block_size` tokens. Hashes are
        reproducible. `eagle_groups`: the numbers of the flagged groups; where a flag alone does not
        count, `use_eagle` is set too. Retention is dense, whatever is chosen.
        """
        listed = list(layers or (block_size,)) if specs is None else list(specs)
        groups = tuple(
            KVCacheGroup(
                (f"layer.{number}",),
                full(layer) if isinstance(layer, int) else layer,
                is_eagle_group=number in eagle_groups,
            )
            for number, layer in enumerate(listed)
        )
        usual = {"max_model_len_tokens": 1000, "hash_seed": "0", "policy": self.policy}
        usual["retention_interval_tokens"] = None
        if eagle_groups and not self.policy.eagle_flag_counts_alone:
            usual["use_eagle"] = True
        return ManagerConfig(KVCacheConfig(num_blocks, groups), **{**usual, **options})

    def create(
        self,
        config: ManagerConfig,
        clock: Any = None,
        *,
        check_invariants: bool = True,
        hashes_matter: bool = True,
    ) -> Managed:
        """Create a manager; leave the check out if the subject does not support the configuration.

        `hashes_matter`: otherwise any hash function of the subject will do.
        """
        can = self.subject.capabilities
        hashes_matter = hashes_matter and not self.watches
        if not hashes_matter and not config.given_hash_bytes:
            config = without_switches(config, can, config.policy, hashes_matter=False)
        lacks = lacking(config, can, hashes_matter=hashes_matter)
        if config.registry.custom:
            self.need(Feature.CUSTOM_SPECS)
        form = config.policy.extra_keys
        if form != self.policy.extra_keys and form not in self.subject.capabilities.extra_key_forms:
            lacks.append(f"{form} extra keys")
        if lacks:
            raise LeftOut(", ".join(lacks))
        # The clock is passed only if given: it cannot travel to another process.
        options = {} if clock is None else {"clock": clock}
        real = created(self.subject, config, check_invariants=check_invariants, **options)
        audits = check_invariants and self.audits and self.has(Feature.SNAPSHOT)
        guards = self.guards and self.level is Level.SAFETY
        # The content of followed requests is unknown, as is the effect of other choices on it.
        guards = guards and not config.given_hash_bytes and config.policy == self.policy
        return Managed(self.subject, real, exact=self.exact, audits=audits, guards=guards)

    def manager(
        self, num_blocks: int = 6, *layers: LayerSpec | int, clock: Any = None, **options: Any
    ) -> Managed:
        """Create a manager for `config` of the same arguments."""
        return self.create(self.config(num_blocks, *layers, **options), clock)

    def restore(self, config: ManagerConfig, snapshot: Any) -> Managed:
        self.need(Feature.RESTORE, Feature.SNAPSHOT)
        return Managed(self.subject, self.subject.restore(config, snapshot), exact=self.exact)

    def through_file(self, manager: Managed) -> Managed:
        self.need(Feature.RESTORE, Feature.SNAPSHOT)
        with TemporaryDirectory() as folder:
            path = Path(folder) / "state"
            save(manager.real, path)
            real = load(self.subject, path, config=manager.config)
        return Managed(self.subject, real, exact=self.exact)

    def story(self, **options: Any) -> tuple[Managed, Any, Any]:
        """Play the running example of the chapter on the pool.

        Six blocks of four tokens. Request a, tokens 1 … 10, took 1, 2, 3; request b, tokens 1 … 8
        and 20, hit 1 and 2 and took 4. The free queue is 5.
        """
        manager = self.manager(6, **options)
        a = manager.request("a", range(1, 11))
        b = manager.request("b", [*range(1, 9), 20])
        manager.admit(a)
        manager.admit(b)
        return manager, a, b


def refusal_of_all(subject: Implementation, policy: Policy) -> str:
    """Return why no manager of one plain group is made; "" if one is, or none can be tried."""
    bench, reason = Bench(subject, policy), ""
    layers = (full(), sliding(4, 6), chunked(4, 16), mamba(4), cross(4), encoder_only(4))
    for layer in layers:
        if type(layer) in subject.capabilities.spec_types:
            try:
                bench.create(bench.config(6, layer), hashes_matter=False)
            except LeftOut as left:
                reason = reason or str(left)
            else:
                return ""
    return reason
