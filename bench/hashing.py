"""`python -m bench.hashing`: kvfast's hashes of blocks beside the bare C calls on the same bytes.

    python -m bench.hashing --into bench/RESULTS.md

Bare: `SHA256_Init`, `SHA256_Update` and `SHA256_Final` of the libcrypto that kvfast uses, called by
a loop in C over prepared messages; each digest is written where the next message has its parent. So
what kvfast takes beyond is reading a list of ints, writing messages and making objects. Needs a C
compiler (`cc`), and cbor2.
"""

from __future__ import annotations

import ctypes
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from time import thread_time_ns

import cbor2

from bench.tables import options, put_run, spread
from kvfast import _build, _native
from kvspec.request import RequestInput

BLOCK = 16
LENGTHS = (512, 1600, 8192)
VOCABULARY = 150_000
PARENT = bytes(range(32))
LEAST_NS = 3_000_000
"""Each turn repeats its work until that much has passed, about."""
LOOP = """
typedef int (*Init)(void *);
typedef int (*Update)(void *, const void *, unsigned long);
typedef int (*Final)(unsigned char *, void *);

void hash_all(Init init, Update update, Final final, unsigned char *text, const long *starts,
              long parent_at, long count, long repeats) {
    unsigned long long state[32];
    for (long turn = 0; turn < repeats; turn++)
        for (long i = 0; i < count; i++) {
            init(state);
            update(state, text + starts[i], starts[i + 1] - starts[i]);
            final(text + starts[i + 1] + parent_at, state);
        }
}
"""


def compiled_loop() -> Callable[..., None]:
    """Compile the loop above."""
    folder = Path(tempfile.mkdtemp())
    (folder / "loop.c").write_text(LOOP)
    made = folder / "loop.so"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", made, folder / "loop.c"], check=True)
    return ctypes.CDLL(str(made)).hash_all


class Case:
    """One form and length of prompt; `acts`: the work to repeat, the bare calls first."""

    def __init__(self, length: int, *, is_pickled: bool, loop: Callable[..., None]) -> None:
        rng = Random(length)
        self.name = f"{length:,} tokens, {'pickled' if is_pickled else 'CBOR'}"
        self.num_blocks = length // BLOCK
        self.tokens = [rng.randrange(VOCABULARY) for _ in range(length)]
        self.messages = list(self.spelled(is_pickled))
        self.acts: dict[str, Callable[[int], None]] = {
            "bare C calls": self.bare(loop),
            "for vLLM": self.chain(is_pickled),
        }
        if not is_pickled:
            self.acts["request"] = self.request()

    def spelled(self, is_pickled: bool) -> Iterator[bytes]:
        """Yield the messages of all blocks; the content of a parent does not affect the time."""
        for i in range(0, len(self.tokens), BLOCK):
            content = (PARENT, tuple(self.tokens[i : i + BLOCK]), None)
            yield pickle.dumps(content, 5) if is_pickled else cbor2.dumps(content, canonical=True)

    def bare(self, loop: Callable[..., None]) -> Callable[[int], None]:
        """Return the loop over the messages."""
        native = _native.sha256()
        if native is None:
            sys.exit("no libcrypto here")
        library = ctypes.CDLL(native.origin)
        functions = [getattr(library, f"SHA256_{name}") for name in ("Init", "Update", "Final")]
        text = ctypes.create_string_buffer(b"".join(self.messages) + bytes(64))
        starts = [0]
        for message in self.messages:
            starts.append(starts[-1] + len(message))
        given = (ctypes.c_long * len(starts))(*starts)
        at = ctypes.c_long(self.messages[0].index(PARENT))
        count = ctypes.c_long(len(self.messages))
        return lambda repeats: loop(*functions, text, given, at, count, ctypes.c_long(repeats))

    def chain(self, is_pickled: bool) -> Callable[[int], None]:
        """Return the hashing of vLLM's requests: a list of ints in, a list of bytes out."""
        chain = _build.load("chain").block_chain("sha256_cbor", BLOCK, is_pickled)
        extra = chain.spelled(None)

        def act(repeats: int) -> None:
            for _ in range(repeats):
                chain.hashes(self.tokens, PARENT, extra)

        return act

    def request(self) -> Callable[[int], None]:
        """Return the act that makes requests of the contract."""
        make = _build.load("request").make_request
        hasher = _build.load("hashing").Hasher("sha256_cbor", "0", False)
        given = RequestInput("r", self.tokens)

        def act(repeats: int) -> None:
            for _ in range(repeats):
                make(given, hasher, BLOCK)

        return act

    def measure(self, num_rounds: int) -> dict[str, list[float]]:
        """Return nanoseconds a block of each, round by round; each round in random order."""
        repeats = {}
        for name, act in self.acts.items():
            number = 1
            while timed(act, number) < LEAST_NS:
                number *= 2
            repeats[name] = number
        found: dict[str, list[float]] = {name: [] for name in self.acts}
        order, rng = list(self.acts), Random(1)
        for _ in range(num_rounds):
            rng.shuffle(order)
            for name in order:
                ns = timed(self.acts[name], repeats[name])
                found[name].append(ns / repeats[name] / self.num_blocks)
        return found


def timed(act: Callable[[int], None], repeats: int) -> int:
    """Return nanoseconds of this thread."""
    began = thread_time_ns()
    act(repeats)
    return thread_time_ns() - began


def rows(num_rounds: int) -> Iterator[str]:
    """Yield the table, line by line."""
    loop = compiled_loop()
    for is_pickled in (True, False):
        for length in LENGTHS:
            case = Case(length, is_pickled=is_pickled, loop=loop)
            found = case.measure(num_rounds)
            bare = found.pop("bare C calls")
            for name, ours in found.items():
                ratio = [mine / least for mine, least in zip(ours, bare, strict=True)]
                cells = (f"{case.name}: {name}", spread(bare), spread(ours), spread(ratio))
                yield f"| {' | '.join(cells)} |"


def main() -> None:
    """See the top of this file."""
    given = options(__doc__, "hashing", 25).parse_args()
    facts = (
        f"Blocks of {BLOCK} tokens below {VOCABULARY:,}; ns of processor time a block, medians of"
        f" {given.rounds} rounds (quartiles). Ratio: kvfast / bare C calls in the same round."
    )
    head = ["| prompt | bare C calls | kvfast | ratio |", "|---|---:|---:|---:|"]
    command = f"python -m bench.hashing --rounds {given.rounds}"
    put_run(command, facts, [*head, *rows(given.rounds)], "hashing", given.into)


if __name__ == "__main__":
    main()
