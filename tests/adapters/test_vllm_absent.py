"""Errors of the vLLM adapter when vLLM is missing, broken, or of another version."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvcheck.adapters.vllm import (
    SUPPORTED_VERSIONS,
    VLLMImplementation,
    VLLMUnavailableError,
    implementation,
)
from kvcheck.adapters.vllm.errors import VLLMCallError, typed_errors
from kvcheck.adapters.vllm.library import Library, environment
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.errors import InvalidArgumentError, UnsupportedError
from kvspec.policy import Policy
from kvspec.specs import (
    FullAttentionSpec,
    LayerSpec,
    MambaSpec,
    SinkFullAttentionSpec,
    TQFullAttentionSpec,
)

HINT = f"pip install vllm=={SUPPORTED_VERSIONS[-1]}"
FULL = FullAttentionSpec(4, 1, 8, "float16")


@pytest.fixture
def fake_vllm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """An empty package `vllm` first on the path; what is imported of it is forgotten again."""
    for name in [name for name in sys.modules if name.split(".")[0] == "vllm"]:
        monkeypatch.delitem(sys.modules, name)
    package = tmp_path / "vllm"
    package.mkdir()
    (package / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    yield package
    for name in [name for name in sys.modules if name.split(".")[0] == "vllm"]:
        del sys.modules[name]


def test_another_version_is_named(fake_vllm: Path) -> None:
    (fake_vllm / "version.py").write_text('__version__ = "0.9.2"\n')
    with pytest.raises(VLLMUnavailableError, match=r"vLLM 0\.9\.2 is on the path.*" + HINT):
        implementation()


@pytest.mark.parametrize("version", SUPPORTED_VERSIONS)
def test_a_local_build_of_a_version_is_accepted_and_what_it_lacks_is_named(
    fake_vllm: Path, version: str
) -> None:
    (fake_vllm / "version.py").write_text(f'__version__ = "{version}+cpu"\n')
    with pytest.raises(VLLMUnavailableError, match=r"No module named 'vllm\.v1'"):
        implementation()


def test_environment_variables_are_put_back_also_after_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KVSPEC_TEST_SET", "before")
    monkeypatch.delenv("KVSPEC_TEST_UNSET", raising=False)

    def fail() -> None:
        with environment(KVSPEC_TEST_SET=None, KVSPEC_TEST_UNSET="now"):
            assert "KVSPEC_TEST_SET" not in os.environ
            assert os.environ["KVSPEC_TEST_UNSET"] == "now"
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert os.environ["KVSPEC_TEST_SET"] == "before"
    assert "KVSPEC_TEST_UNSET" not in os.environ


@pytest.mark.parametrize("original", [ValueError("no room"), AssertionError()])
def test_what_vllm_raises_on_purpose_becomes_a_typed_error(original: Exception) -> None:
    with pytest.raises(VLLMCallError) as caught, typed_errors("free"):
        raise original
    assert isinstance(caught.value, ValueError)
    assert caught.value.original is original
    assert str(caught.value).startswith(f"free: vLLM raised {type(original).__name__}")


def test_what_vllm_lacks_is_unsupported_and_a_crash_stays_one() -> None:
    with pytest.raises(UnsupportedError, match="cross attention"), typed_errors("free"):
        raise NotImplementedError("no cross attention")
    with pytest.raises(IndexError), typed_errors("free"):
        raise IndexError
    with pytest.raises(InvalidArgumentError, match=r"^group = 9"), typed_errors("free"):
        raise InvalidArgumentError("group", 9, "smaller")


def config(*specs: LayerSpec, **members: object) -> ManagerConfig:
    groups = tuple(KVCacheGroup((f"layer.{i}",), spec) for i, spec in enumerate(specs))
    given: dict[str, Any] = {"policy": Policy(lookups_counted="asked"), **members}
    return ManagerConfig(KVCacheConfig(8, groups), 64, **given)


OLD, NEW = (Library(version, {}) for version in SUPPORTED_VERSIONS)  # without any of its modules
LATER = NEW.policy
STATES = MambaSpec(4, ((1,),), ("float32",))


@pytest.mark.parametrize(
    ("of", "refused", "why"),
    [
        (OLD, config(SinkFullAttentionSpec(4, 1, 8, "float16", sink_len=4)), "SinkFullAttention"),
        (
            OLD,
            config(FULL, hash_function="sha256_cbor_64bit", trusted_tenants=True),
            "sha256_cbor_64bit",
        ),
        (OLD, config(FULL, residency_sample_rate=0.5), "residency"),
        (OLD, config(FULL, policy=Policy(unhashed_freed_to="back")), "unhashed_freed_to"),
        (OLD, config(FULL, policy=Policy(removed_event_per="last_copy")), "removed_event_per"),
        (OLD, config(FULL, policy=LATER), "zero_retention_needs_windows = False"),
        (NEW, config(FULL), "zero_retention_needs_windows = True"),
        (NEW, config(TQFullAttentionSpec(4, 1, 8, "float16"), policy=LATER), "TQFullAttention"),
        (NEW, config(STATES, policy=LATER), "mamba_cache_mode none"),
        (NEW, config(FULL, pcp_world_size=2, policy=LATER), "context_parallel prefill"),
    ],
)
def test_what_a_vllm_does_not_have_is_refused_by_name(
    of: Library, refused: ManagerConfig, why: str
) -> None:
    with pytest.raises(UnsupportedError, match=why):
        VLLMImplementation(of).create(refused)
