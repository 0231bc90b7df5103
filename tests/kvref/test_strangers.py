"""Managers of other implementations, requests hashed otherwise, and a package that is missing."""

from __future__ import annotations

import sys
from typing import Any

import pytest

import kvref
from kvcheck.rules.specs import full
from kvspec.errors import InvalidArgumentError, UnsupportedError
from kvspec.interface import KVCacheManager
from kvspec.policy import Policy
from kvspec.request import RequestInput
from tests.contract.builders import admit, everything, make_config, new_manager, new_request

KVREF = kvref.implementation()


@pytest.mark.parametrize("stranger", [None, "kvref", object()])
def test_a_foreign_manager_is_refused(stranger: KVCacheManager) -> None:
    request = new_request(KVREF, new_manager(KVREF), "r", [1])
    for call in (
        lambda: KVREF.make_request(stranger, RequestInput("r", [1])),
        lambda: KVREF.append_tokens(stranger, request, [1]),
        lambda: KVREF.clone(stranger),
    ):
        with pytest.raises(InvalidArgumentError) as caught:
            call()
        assert caught.value.field == "manager"
    assert list(request.token_ids) == [1]


OTHER_HASHES: tuple[dict[str, Any], ...] = (
    {"block_size": 8},
    {"block_size": 2},
    {"hash_seed": "1"},
    {"hash_seed": None},
    {"hash_function": "xxhash_cbor", "trusted_tenants": True},
    {"hash_function": "sha256_cbor_64bit", "trusted_tenants": True},
    {"policy": Policy(extra_keys="plain")},
    {"enable_caching": False},
)


@pytest.mark.rule("KV-REQ-1", "KV-HASH-5")
@pytest.mark.parametrize("config", OTHER_HASHES)
def test_a_request_hashed_for_another_manager_is_refused(config: dict[str, Any]) -> None:
    manager = new_manager(KVREF, 6, enable_events=True, log_stats=True)
    other = new_manager(KVREF, 6, **config)
    request = new_request(KVREF, other, "r", range(20))
    before = everything(manager)
    for call in (
        lambda: manager.get_computed_blocks(request),
        lambda: manager.allocate_slots(request, 20),
        lambda: manager.cache_blocks(request, 0),
        lambda: KVREF.append_tokens(manager, request, [1]),
    ):
        with pytest.raises(InvalidArgumentError) as caught:
            call()
        assert caught.value.field == "request"
    assert everything(manager) == before
    assert request.num_tokens == 20


def test_managers_with_the_same_hashes_share_requests() -> None:
    request = new_request(KVREF, new_manager(KVREF), "r", range(9))
    specs = [full(4), full(8)]
    for manager in (
        new_manager(KVREF, 9, watermark=0.1),
        new_manager(KVREF, 9, block_size=2, dcp_world_size=2),
        new_manager(KVREF, 9, specs=specs),
        new_manager(KVREF, 9, enable_caching=False),
    ):
        assert admit(manager, request) is not None
        request.num_computed_tokens = 0


@pytest.mark.rule("KV-HASH-12", "KV-ERR-5")
def test_without_the_package_xxhash_its_function_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "xxhash", None)
    for seed in ("0", None):
        with pytest.raises(UnsupportedError) as caught:
            KVREF.create(
                make_config(hash_function="xxhash_cbor", trusted_tenants=True, hash_seed=seed)
            )
        assert "pip install 'kvspec[xxhash]'" in str(caught.value)
        assert caught.value.implementation == "kvref"
    KVREF.create(make_config(hash_function="sha256_cbor_64bit", trusted_tenants=True))
