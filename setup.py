"""Build the compiled twin of kvfast's core; pyproject.toml has everything else.

Each module of ``kvfast/_core`` is compiled to ``kvfast/_compiled``, so that both builds can be
loaded in one process. If Cython or a C compiler is missing the installation continues without it,
and ``kvfast.compiled`` is false.
"""

import os
import sys
import sysconfig
from multiprocessing import get_start_method
from pathlib import Path

from setuptools import Extension, setup

ROOT = Path(__file__).parent
SHARED = "kvfast._compiled.shared"
FASTEST = (".chain", ".digest", ".entries", ".hashing", ".key_map", ".objects")
"""Modules that gain by -O3. At -O2 gcc makes a call of the encoding of each token (half the speed
of hashing) and of each comparison of a key, and moves words and numbers one by one."""
WITHOUT_CODE = frozenset({"egg_info", "dist_info", "sdist"})
"""Commands that compile nothing: they need not wait for C code."""
IS_PURE = os.environ.get("KVFAST_PURE") == "1"


def compiled_twins() -> list[Extension]:
    """Return one extension per module of ``kvfast/_core``; none on a machine without Cython.

    ``digest`` and ``objects`` have twins in Cython's own language.
    """
    try:
        from Cython.Build import cythonize
    except ImportError:
        return []
    names = sorted(path.stem for path in (ROOT / "kvfast" / "_core").glob("*.py"))
    extensions: list[Extension] = cythonize(
        [
            Extension(f"kvfast._compiled.{name}", [f"kvfast/_core/{name}.py"])
            for name in names
            if name not in ("__init__", "digest", "objects")
        ]
        + [
            Extension("kvfast._compiled.digest", ["kvfast/_compiled/digest.pyx"]),
            Extension("kvfast._compiled.objects", ["kvfast/_compiled/objects.pyx"]),
            Extension("kvfast._compiled.vllm_loops", ["kvfast/engines/vllm/loops.py"]),
            Extension("kvfast._compiled.vllm_taking", ["kvfast/engines/vllm/taking.py"]),
            Extension(SHARED, ["build/cython/shared.c"]),
        ],
        build_dir="build/cython",
        # By processes where they start as copies; elsewhere each would run this file again.
        nthreads=(os.cpu_count() or 1) if get_start_method() == "fork" else 0,
        # What typed memory views need, once instead of in every module.
        shared_utility_qualified_name=SHARED,
        # A .pxd is in the package of its extension, where Cython looks for it but doesn't
        # track it: without force, an edit of the .pxd alone would leave the old build in place.
        force=True,
        compiler_directives={
            "language_level": 3,
            # The C types are in the .pxd files. Read as C types, the annotations of the .py
            # files would clash with them.
            "annotation_typing": False,
            # Indices are checked once, where Python calls in; see kvfast/_core/checks.py.
            "boundscheck": False,
            "wraparound": False,
            "initializedcheck": False,
            # Nothing here divides negative numbers, or by 0.
            "cdivision": True,
            # A copy would share memory whose room it does not know.
            "auto_pickle": False,
        },
    )
    for extension in extensions:
        # cythonize() drops this flag; without it a machine with no compiler could not install.
        extension.optional = True
        level = "-O3" if extension.name.endswith(FASTEST) else "-O2"
        level = os.environ.get("KVFAST_OPTIMIZE", level)  # .ci/sanitize builds with less
        extension.extra_compile_args = [level, "-g0"] if os.name == "posix" else []
    return extensions


# A flag admits one call at a time (KV-ERR-7), and the GIL protects the flag.
if sysconfig.get_config_var("Py_GIL_DISABLED"):
    raise SystemExit(
        "kvspec does not support free-threaded CPython: a second thread could enter a manager"
        " unseen. Install it with a CPython that has the GIL, such as python3.13 in place of 3.13t."
    )

setup(
    ext_modules=[] if IS_PURE or WITHOUT_CODE & set(sys.argv) else compiled_twins(),
    # One C compiler for each processor: some thirty modules, each of which takes seconds.
    options={"build_ext": {"parallel": os.cpu_count() or 1}},
)
