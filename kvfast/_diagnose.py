"""What `kvspec doctor` shows about kvfast: its build, torch, Triton and the device."""

from importlib.metadata import PackageNotFoundError, version

from kvfast import _build


def facts() -> dict[str, str]:
    """Label to text, in the order to show. Imports torch where it is installed."""
    found = {"build": "compiled"}
    reason = _build.why_not_compiled()
    if reason is not None:
        found["build"] = f"not compiled: {reason}"
        found["to compile"] = _build.HOW_TO_COMPILE
    found["torch"] = _version_of("torch")
    found["Triton"] = _version_of("triton")
    found["CUDA device"] = _cuda_device()
    return found


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
