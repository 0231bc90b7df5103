"""The caches of the models in vLLM's registry, and what serves them: a table in docs/vllm.md.

    python -m examples.vllm.models --write

Layers are found in vLLM's source: the classes that a model's class names, those that they name, and
so on up to classes with a cache. Nothing but the registry is imported. A layer counts as a model's
even if only some of its configurations have it. A language model that only the configuration of a
multimodal model names counts as attention.
"""

from __future__ import annotations

import argparse
import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from importlib.util import resolve_name
from pathlib import Path
from types import MappingProxyType

import vllm
from vllm.model_executor.models import registry

from bench.tables import put
from kvspec.foreign import TYPE_OF_NAME

ROOT = Path(vllm.__file__).parent
PAGE = Path(__file__).resolve().parents[2] / "docs" / "vllm.md"
FOLLOWED = (
    *("models", "model_executor.models", "v1.attention.backends.mla"),
    *(f"model_executor.layers.{part}" for part in ("attention", "mamba", "mla", "conv")),
)
"""Packages of vLLM whose classes are followed."""
OTHERS = ("amd", "xpu", "cpu", "tpu")  # for other devices than CUDA's
CACHE, STATE = "get_kv_cache_spec", "get_state_shape"
"""The methods of a layer that has blocks, and of one that has states."""
BASES = ("KVCacheSpec", "AttentionSpec")
MARKS = frozenset({"num_prefill_checkpoint_blocks"})
"""The reason in the table where a model has states alone."""
LANGUAGE = "those of its language model, or none"
POOLING = "EMBEDDING LATE_INTERACTION REWARD TOKEN_CLASSIFICATION SEQUENCE_CLASSIFICATION"
GENERATING = MappingProxyType({"text": "TEXT_GENERATION", "multimodal": "MULTIMODAL"})
"""The registry's tables of models that run by themselves."""


class Source:
    """A file of vLLM: its classes and functions, and what it imports, by name."""

    def __init__(self, path: Path) -> None:
        self.package = ".".join(["vllm", *path.relative_to(ROOT).parts[:-1]])
        tree = ast.parse(path.read_text("utf-8"))
        self.defined: dict[str, ast.AST] = {
            node.name: node
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef | ast.FunctionDef)
        }
        for node in tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self.defined.setdefault(node.targets[0].id, node)
        self.imported = dict(self.imports(tree))

    def imports(self, tree: ast.AST) -> Iterator[tuple[str, tuple[str, str]]]:
        """Yield each imported name with the module and its name there."""
        for node in ast.walk(tree):
            if not isinstance(node, ast.ImportFrom):
                continue
            module = resolve_name("." * node.level + (node.module or ""), self.package)
            for alias in node.names if module.startswith("vllm.") else ():
                yield alias.asname or alias.name, (module.removeprefix("vllm."), alias.name)


@cache
def sources(module: str) -> tuple[Source, ...]:
    """Read a module; of a package all files but other devices'."""
    if not module.startswith(FOLLOWED):
        return ()
    path = ROOT.joinpath(*module.split("."))
    if path.with_suffix(".py").exists():
        return (Source(path.with_suffix(".py")),)
    files = sorted(path.rglob("*.py")) if path.name not in ("models", "layers") else []
    return tuple(Source(file) for file in files if not {*file.parts} & {*OTHERS})


@cache
def found(module: str, name: str, depth: int = 0) -> tuple[tuple[Source, ast.AST], ...]:
    here: list[tuple[Source, ast.AST]] = []
    for source in sources(module):
        if name in source.defined:
            here.append((source, source.defined[name]))
        elif name in source.imported and depth < 5:
            here += found(*source.imported[name], depth + 1)
    return tuple(here)


@cache
def next_after(source: Source, node: ast.AST) -> tuple[tuple[Source, ast.AST], ...]:
    """Return what a class, a function or a constant names."""
    used = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    here = [(source, source.defined[name]) for name in used & source.defined.keys()]
    imported = (found(*source.imported[name]) for name in used & source.imported.keys())
    return (*here, *(each for names in imported for each in names))


@cache
def specs_of(node: ast.AST) -> frozenset[str]:
    """Return the types of a layer's cache, and marks; none for a class that is no such layer."""
    walked = [*ast.walk(node)]
    marks = {each.attr for each in walked if isinstance(each, ast.Attribute)} & MARKS
    methods = {each.name: each for each in getattr(node, "body", []) if hasattr(each, "name")}
    if CACHE not in methods:
        return frozenset(marks | ({"MambaSpec"} if STATE in methods else set()))
    walked = [*ast.walk(methods[CACHE])]
    marks |= {str(each.arg) for each in walked if isinstance(each, ast.keyword)} & MARKS
    names = {each.id for each in walked if isinstance(each, ast.Name)}
    return frozenset(marks | {n for n in names if n.endswith("Spec") and n not in BASES})


def caches(module: str, name: str) -> frozenset[str]:
    todo, seen, specs = [*found(module, name)], set[int](), set[str]()
    while todo:
        source, node = todo.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        specs |= specs_of(node)
        # A model's own layers have further ones; vLLM's common layers name what they may become.
        if not specs_of(node) or ".layers" not in source.package:
            todo += next_after(source, node)
    return frozenset(specs)


def served(specs: frozenset[str]) -> tuple[str, str]:
    """Return which manager serves such a model on 0.33.0, and whether in whole steps."""
    lacking = sorted(name for name in specs if name.endswith("Spec") and name not in TYPE_OF_NAME)
    reasons = [f"`{name}`" for name in lacking]
    is_states = specs & TYPE_OF_NAME.keys() == {"MambaSpec"}
    reasons += ["states alone, with prefix caching"] * bool(is_states and specs & MARKS)
    if reasons:
        return f"vLLM's: {', '.join(reasons)}", ""
    return "kvfast", "no" if "CrossAttentionSpec" in specs else "yes"


def lines() -> Iterator[str]:
    rows: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for kind, parts in {**GENERATING, "pooling": POOLING}.items():
        for part in parts.split():
            for name, (module, cls) in getattr(registry, f"_{part}_MODELS").items():
                at = module.removeprefix("vllm.") if "." in module else f"{FOLLOWED[1]}.{module}"
                specs = caches(at, cls)
                shown = ", ".join(sorted(specs - MARKS)).replace("Spec", "")
                rows[kind, shown or LANGUAGE, *served(specs)].append(name)
    yield "| models | kind | caches, as their layers may have | manager | whole steps |"
    yield "|---|---|---|---|---|"
    for key, names in sorted(rows.items(), key=lambda row: -len(row[1])):
        some, others = ", ".join(names[:3]), ", ".join(names[3:])
        if others:
            more = f"and {len(names) - 3} more"
            some += f" <details><summary>{more}</summary>{others}</details>"
        yield f"| {some} | {' | '.join(key)} |"
    for told, kinds in (("generate", GENERATING), ("generate or pool", (*GENERATING, "pooling"))):
        mine = {key: len(names) for key, names in rows.items() if key[0] in kinds}
        number = sum(mine.values())
        on = sum(count for key, count in mine.items() if key[2] == "kvfast")
        whole = sum(count for key, count in mine.items() if key[3] == "yes")
        yield ""
        yield (
            f"Of {number} architectures that {told}, kvfast serves {on} ({on / number:.1%}), "
            f"{whole} ({whole / number:.1%}) in whole steps."
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="into docs/vllm.md")
    put(list(lines()), "models", PAGE if parser.parse_args().write else None)


if __name__ == "__main__":
    main()
