"""Parts of the reference by themselves, where the rest of it hides what they do."""

from __future__ import annotations

import inspect
from importlib.metadata import version

import kvref
from kvcheck.rules.specs import cross, full, mamba
from kvref.implementation import ReferenceImplementation
from kvref.manager import ReferenceManager
from kvspec.config import HASH_FUNCTIONS
from kvspec.interface import Feature, Implementation, KVCacheManager
from tests.contract.builders import make_config, new_request


class Clock:
    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


def test_a_copy_has_the_same_clock_and_hasher() -> None:
    clock = Clock()
    implementation = kvref.implementation()
    bare = implementation.create(
        make_config(4, residency_sample_rate=1.0), clock=clock, check_invariants=False
    )
    copy = implementation.clone(bare)
    clock.now_ns = 100
    for manager in (bare, copy):
        request = new_request(implementation, manager, "r", range(5))
        manager.allocate_slots(request, 5)
        manager.free(request)
    clock.now_ns = 250
    ages = []
    for manager in (bare, copy):
        manager.evict_blocks([1, 2])
        ages.append([sample.lifetime_ns for sample in manager.take_residency_samples()])
    assert ages == [[150, 150], [150, 150]]
    assert vars(copy)["hasher"] is vars(bare)["hasher"]


def test_defaults_are_those_of_the_interface() -> None:
    for mine, contract in (
        (ReferenceManager, KVCacheManager),
        (ReferenceImplementation, Implementation),
    ):
        for name, promised in vars(contract).items():
            if name.startswith("_") or not inspect.isfunction(promised):
                continue
            found = inspect.signature(getattr(mine, name)).parameters
            for parameter in inspect.signature(promised).parameters.values():
                assert found[parameter.name].default == parameter.default, (name, parameter)


def test_the_reference_says_what_it_can() -> None:
    found = kvref.implementation().capabilities
    assert (found.name, found.version) == ("kvref", version("kvspec"))
    assert found.hash_functions == frozenset(HASH_FUNCTIONS)
    assert found.features == frozenset(Feature)
    assert {type(full(4)), type(mamba(4)), type(cross(4))} < found.spec_types
