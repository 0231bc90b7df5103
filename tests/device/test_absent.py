"""With torch and without Triton everything runs; without torch: tests/kvfast/test_build.py.

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
from kvspec.config import KVCacheConfig, KVCacheGroup
from kvspec.specs import FullAttentionSpec

group = KVCacheGroup(("a",), FullAttentionSpec(4, 1, 2, "float16"))
pools = device.KVPools(KVCacheConfig(6, (group,)))
print(device.PageOperations(pools).backend, chosen(None, torch.device("cuda")))
for ask, given in ((device.PageOperations, [pools]), (device.Swapper, [pools, pools])):
    try:
        ask(*given, backend="triton")
    except device.MissingDependencyError as error:
        print(error.package, "|", error)
print("triton" in sys.modules)
"""

PRINTED_WITHOUT_TRITON = """\
torch torch
triton | backend='triton' needs triton: pip install 'triton'
triton | backend='triton' needs triton: pip install 'triton'
False
"""


def printed(code: str, *hidden: str) -> str:
    done = python("-c", HIDE.format(hidden=set(hidden)) + code, folder=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_triton_torch_is_chosen_and_kernels_are_refused() -> None:
    assert printed(WITHOUT_TRITON, "triton") == PRINTED_WITHOUT_TRITON


def test_the_page_prints_the_same_without_triton() -> None:
    page = (ROOT / "docs/device.md").read_text(encoding="utf-8")
    code = "".join(re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))
    expected = re.findall(r"^ *print\(.*\)  # (.*)$", code, re.MULTILINE)
    assert printed(code, "triton").splitlines() == expected
