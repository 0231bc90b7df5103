"""With torch and without Triton everything runs; without torch: tests/kvfast/test_device_absent.py.

Each case is a Python of its own in which the finders of modules don't find Triton.
"""

from __future__ import annotations

import re

from tests.commands import python
from tests.source import ROOT

HIDE = """
import sys

class Hiding:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        hidden = name.partition(".")[0] in {hidden!r}
        return None if hidden else self.finder.find_spec(name, path, target)
    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = [Hiding(finder) for finder in sys.meta_path]
"""

WITHOUT_TRITON = """
import torch
from kvfast import device
from kvfast.device.base.backend import chosen
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.specs import FullAttentionSpec, MLAAttentionSpec

spec = FullAttentionSpec(4, 1, 2, "float16")
cache = KVCacheConfig(6, (KVCacheGroup(("a",), spec),))
pools = device.KVPools(cache)
pages = device.PageOperations(pools)
print(pages.backend, chosen(None, torch.device("cuda")))
pages.zero_blocks([1, 2, 3])
tokens = torch.ones(2, 1, 2)
pages.write("a", tokens, 2 * tokens, [4, 9])
pages.copy_blocks([1], [3])
pages.copy_slots(0, [9], [13])
print([one[:, 0, 0].tolist() for one in pages.gather("a", [4, 9, 12, 13, -1])])
latents = KVCacheConfig(3, (KVCacheGroup(("a",), MLAAttentionSpec(4, 1, 2, "float8_e5m2")),))
other = device.PageOperations(device.KVPools(latents))
other.write_latent("a", 3 * tokens, [5, 6], scale=2.0)
print(other.gather_latent("a", [6], dtype=torch.float32, scale=2.0).flatten().tolist())
host = device.KVPools(cache)
swapper = device.Swapper(pools, host)
swapper.swap_out([3], [5]).wait()
swapper.swap_in([5], [4]).wait()
print(pages.gather("a", [16])[0].flatten().tolist())
tables = device.DeviceTables(ManagerConfig(cache, 16), max_requests=2, max_tokens=4)
step = tables.update([1], [2], torch.tensor([[1, 0, 0, 3]], dtype=torch.int32))
print(tables.backend, step.slots[0].tolist(), tables.block_tables(0)[0, :1].tolist())
for ask in (device.PageOperations, device.Swapper):
    given = (pools, host)[: 1 + (ask is device.Swapper)]
    try:
        ask(*given, backend="triton")
    except device.MissingDependencyError as error:
        print(error.package, "|", error)
print("triton" in sys.modules)
"""

PRINTED_WITHOUT_TRITON = """\
torch torch
[[1.0, 1.0, 1.0, 1.0, 0.0], [2.0, 2.0, 2.0, 2.0, 0.0]]
[3.0, 3.0]
[1.0, 1.0]
torch [12, 13] [3]
triton | backend='triton' needs triton: pip install 'triton'
triton | backend='triton' needs triton: pip install 'triton'
False
"""


def printed(code: str, *hidden: str) -> str:
    done = python("-c", HIDE.format(hidden=set(hidden)) + code, folder=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_triton_all_operations_run_in_torch() -> None:
    assert printed(WITHOUT_TRITON, "triton") == PRINTED_WITHOUT_TRITON


def test_the_page_prints_the_same_without_triton() -> None:
    page = (ROOT / "docs/device.md").read_text(encoding="utf-8")
    code = "".join(re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))
    expected = re.findall(r"^ *print\(.*\)  # (.*)$", code, re.MULTILINE)
    assert printed(code, "triton").splitlines() == expected


def test_a_hidden_package_is_not_found_though_it_is_there() -> None:
    code = (
        "from importlib.util import find_spec\n"
        "print(find_spec('json'))\n"
        "try:\n    import json.decoder\n"
        "except ModuleNotFoundError as error:\n    print(error)\n"
        "import kvspec\nprint(kvspec.__name__)\n"
    )
    assert printed(code, "json") == "None\nNo module named 'json'\nkvspec\n"
