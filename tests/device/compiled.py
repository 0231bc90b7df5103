"""python -m tests.device.compiled [--all]: kernels, compiled for sm_90 without a GPU.

The functions of each `kernels` run unchanged, with tensors in host memory; their launches are
compiled instead, for the same arguments. Each line printed describes one; the first
two are of kernels with mistakes.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, cycle, product
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, CompilationError

from kvfast.device import KVPools
from kvfast.device.hashing import kernels as hashing
from kvfast.device.hashing.prompts import prompts_on
from kvfast.device.index import kernels as index
from kvfast.device.index.table import IndexTable
from kvfast.device.pages import formats
from kvfast.device.pages import kernels as pages
from kvfast.device.pages.segments import Segments
from kvfast.device.resident import kernels as resident
from kvfast.device.resident.state import new_run
from kvfast.device.tables import kernels as tables
from kvfast.device.tables.geometry import Geometry, GroupTable
from kvfast.device.tables.state import Header, new_state
from kvspec.config import KVCacheConfig, KVCacheGroup
from kvspec.specs import FullAttentionSpec

POINTERS = {1: "*i8", 2: "*i16", 4: "*i32", 8: "*i64"}
GIVEN = (torch.float16, torch.bfloat16, torch.float32)
SCALED = {torch.int8: "INT8_PER_TOKEN_HEAD", torch.float8_e4m3fn: "FP8_PER_TOKEN_HEAD"}


@dataclass
class Compiling:
    """A kernel whose launches are compiled and described instead."""

    kernel: Any
    found: list[dict[str, object]]

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*given: Any, **options: Any) -> None:
            self.found.append(
                {"kernel": self.kernel.__name__, **facts(self.kernel, given, options)}
            )

        return launch


def facts(kernel: Any, given: tuple[Any, ...], options: dict[str, Any]) -> dict[str, object]:
    named = {p.name: options.pop(p.name) for p in kernel.params if p.name in options}
    if len(given) + len(named) != len(kernel.params):
        raise TypeError(f"{kernel.__name__} takes {len(kernel.params)} arguments, not {len(given)}")
    types, constants, attributes = dict[str, str](), dict[Any, Any](), dict[Any, Any]()
    for number, (parameter, value) in enumerate(
        zip(kernel.params, (*given, *named.values()), strict=True)
    ):
        types[parameter.name] = type_of(parameter, value)
        if types[parameter.name] == "constexpr":
            constants[(number,)] = value
        elif is_aligned(parameter, value):
            attributes[(number,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature=types, constexprs=constants, attrs=attributes)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    text = made.asm["ptx"]
    return {
        "wide": len(re.findall(r"\b(?:ld|st)\.global\S*\.v4\.\w32|\.v2\.\w64", text)),
        "accesses": len(re.findall(r"\b(?:ld|st)\.global", text)),
        "fused": "fma." in text,
        "flushed": ".ftz" in text,
        "divides": "div.s" in text or "rem.s" in text,
        "local": ".local" in text or bool(stack_of(made.asm["cubin"])),
    }


def type_of(parameter: Any, value: Any) -> str:
    if parameter.is_constexpr or (type(value) is int and value == 1 and not unspecial(parameter)):
        return "constexpr"
    if isinstance(value, torch.Tensor):
        return "*fp32" if value.dtype == torch.float32 else POINTERS[value.element_size()]
    if isinstance(value, float):
        return "fp32"
    return "i32" if -(2**31) <= value < 2**31 else "i64"


def unspecial(parameter: Any) -> bool:
    return bool(parameter.do_not_specialize)


def is_aligned(parameter: Any, value: Any) -> bool:
    if unspecial(parameter) or isinstance(value, float):
        return False
    if isinstance(value, torch.Tensor):
        aligned = value.data_ptr() % 16 == 0
        return aligned and not parameter.do_not_specialize_on_alignment
    return bool(value % 16 == 0)


def stack_of(cubin: bytes) -> int:
    """Return a thread's bytes of local memory; 0 where no tool shows them."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    if not tool.exists():
        return 0
    with TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        said = subprocess.run(
            [tool, "-res-usage", file], capture_output=True, text=True, check=True
        ).stdout
    return sum(map(int, re.findall(r"(?:STACK|LOCAL):(\d+)", said)))


def pools_of(stored: torch.dtype, heads: int, size: int, *, scaled: bool) -> KVPools:
    mode = SCALED[stored] if scaled else "NONE"
    spec = FullAttentionSpec(16, heads, size, str(stored).removeprefix("torch."), mode)
    return KVPools(KVCacheConfig(3, (KVCacheGroup(("a",), spec),)))


def taken_over(module: ModuleType, *names: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for name in names:
        setattr(module, name, Compiling(getattr(module, name), found))
    return found


def of_pages(*, all_of_them: bool) -> Iterator[dict[str, object]]:
    """Yield every format, or every conversion, at 6 elements; then vectors of large models."""
    found = taken_over(pages, "_store_kernel", "_load_kernel", "_copy_kernel", "_zero_kernel")
    some = zip(formats.STORED, cycle(GIVEN), strict=False)
    pairs = product(formats.STORED, GIVEN) if all_of_them else some
    cases = [(stored, given, False, 1, 6) for stored, given in pairs]
    cases += [(stored, torch.bfloat16, True, 3, 6) for stored in SCALED]
    cases += [(torch.bfloat16, torch.bfloat16, False, 8, 128)]
    slots, tile = torch.arange(16, 21), pages.TILE
    for stored, given, scaled, heads, size in cases:
        pages.TILE = tile if size > 6 or all_of_them else 256  # which takes less time
        parts = pools_of(stored, heads, size, scaled=scaled).layers["a"].parts
        tokens = torch.zeros((5, heads, size), dtype=given)
        scale = 1.0 if given == torch.float16 else 0.37
        pages.store_tokens(parts["key"], parts.get("key_scale"), tokens, slots, scale)
        pages.load_tokens(parts["key"], parts.get("key_scale"), slots, given, scale)
        if stored == torch.int8:  # a scale for each vector is copied as a vector of one element
            column = parts["key_scale"][..., None]
            numbers = pages.load_tokens(column, None, slots, torch.float32, 1.0)
            pages.store_tokens(column, None, numbers, slots, 1.0)
        for one in found:
            yield {"stored": str(stored), "given": str(given), "size": size, **one}
        found.clear()
    table, ids = torch.zeros((2, 3), dtype=torch.int64), torch.arange(1, 3, dtype=torch.int32)
    for word_bytes in (16, 8, 4, 2, 1) if all_of_them else (16,):
        many, few = (Segments((), table, num, 4096, word_bytes) for num in (1 << 20, 7))
        pages.copy_pages(many, few, ids, ids)
        pages.zero_pages(Segments((), table, 1, 4096, word_bytes), ids.long())
        for one in found:
            yield {"word_bytes": word_bytes, **one}
        found.clear()


def of_prompts() -> Iterator[dict[str, object]]:
    found = taken_over(hashing, "_messages", "_chain")
    more = taken_over(index, "_insert", "_lookup")
    cpu = torch.device("cpu")
    for num, dtype in ((1, torch.int32), (5, torch.int64)):
        starts, size = torch.arange(num + 1) * 8, 1 if num == 1 else 4
        tokens, counts = torch.zeros(8 * num, dtype=dtype), starts.diff() // size
        prompts = prompts_on(cpu, tokens, starts, counts, bytes(32))
        words = hashing.block_hashes(prompts, size)
        table = IndexTable.empty(4, cpu)
        index.insert(table, num - 1, num + 1)
        index.lookup(table, prompts, words, num - 1, size)
    yield from (*found, *more)


def of_tables() -> Iterator[dict[str, object]]:
    found = taken_over(tables, "_apply", "_outputs", "_gather")
    more = taken_over(resident, "_decide")
    cpu = torch.device("cpu")
    for num in (1, 300):
        group = GroupTable(num, num, True, False)
        geometry = Geometry((group,), num)
        state = new_state(geometry, num, 1000, cpu)
        tables.apply(state, Header())
        tables.outputs(state, geometry)
        tables.gather(state, 0, group, torch.zeros((num, num), dtype=torch.int32))
        resident.decide(state, new_run(num, 1, 4, cpu), geometry)
    yield from (*found, *more)


@triton.jit
def _fuses_and_divides(numbers, divisor):  # type: ignore[no-untyped-def] # as Triton wants it
    place = tl.program_id(0) // divisor
    tl.store(numbers + place, tl.load(numbers + place) * 3.5 + 1.5)


@triton.jit  # type: ignore[untyped-decorator] # as Triton has it
def _returns_early(numbers, kind: tl.constexpr):  # type: ignore[no-untyped-def] # and wants it
    if kind == "float32":
        return
    tl.static_assert(kind == "int8")


def twins() -> Iterator[dict[str, object]]:
    numbers = torch.zeros(4)
    for kernel, value in ((_fuses_and_divides, 3), (_returns_early, "float32")):
        try:
            yield facts(kernel, (numbers, value), {"enable_fp_fusion": True})
        except CompilationError as error:
            yield {"error": type(error).__name__}


if __name__ == "__main__":
    made = chain(twins(), of_tables(), of_prompts(), of_pages(all_of_them="--all" in sys.argv))
    for line in made:
        print(json.dumps(line), flush=True)
