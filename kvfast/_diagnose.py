"""The facts about kvfast in `kvspec doctor`: its build, hash functions, torch and device."""

import importlib
from importlib.metadata import PackageNotFoundError, version

from kvfast import _build
from kvspec.errors import UnsupportedError


def facts() -> dict[str, str]:
    """Map labels to text, in the order to show. Imports torch where it is installed."""
    found = {"build": "compiled"}
    reason = _build.why_not_compiled()
    if reason is not None:
        found["build"] = f"not compiled: {reason}"
        found["to compile"] = _build.HOW_TO_COMPILE
    found["SHA-256"] = _origin_of("sha256_cbor")
    found["XXH3-128"] = _origin_of("xxhash_cbor")
    found["hash functions"] = (
        "sha256_cbor; xxhash_cbor and sha256_cbor_64bit with trusted_tenants=True only, as prompts"
        " with equal hashes can be made (KV-HASH-11, KV-HASH-12)"
    )
    found["torch"] = _version_of("torch")
    found["Triton"] = _version_of("triton")
    found["CUDA device"] = _cuda_device()
    return found


def _origin_of(hash_function: str) -> str:
    """Return the library or package whose code computes this hash function."""
    package = "kvfast._compiled" if _build.is_compiled() else "kvfast._core"
    try:
        return str(importlib.import_module(f"{package}.digest").Digest(hash_function).origin)
    except UnsupportedError:
        return "not installed"


def _version_of(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"


def _cuda_device() -> str:
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: one of its shared libraries is missing
        installed = _version_of("torch") != "not installed"
        return f"unknown: torch does not load: {error}" if installed else "unknown without torch"
    if not torch.cuda.is_available():
        return "none"
    return str(torch.cuda.get_device_name())
