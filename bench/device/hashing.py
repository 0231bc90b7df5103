"""python -m bench.device.hashing: the number of prompts from which the device is faster.

It looks up waiting prompts, half of each cached, for the length of each one's hit on the host.
Three ways compete: the manager (requests are made by as many threads as there are processors, then
looked up), an index of their prefixes that stays on the host, and one that hashes and looks up on
the device. Tokens are in host memory, and all results are compared. No cache holds a prompt's
hashes: every round has other prompts.

The last line is the `Crossover` for this machine. Without a GPU `--device cpu --quick` only shows
that it runs.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

import kvfast
from bench.device.report import machine
from bench.device.timing import Spread, ratio, spread
from kvfast.device import Crossover, PrefixIndex
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.errors import KVSpecError
from kvspec.request import RequestInput
from kvspec.specs import FullAttentionSpec

BLOCK_SIZE = 16
NUM_CACHED = 64
"""Different first halves that are cached; prompts begin with these by turns."""
LARGEST_TOKEN = 65_535
MANAGER, HOST, DEVICE = "manager", "index, host", "index, device"

Lookup = Callable[[torch.Tensor, list[int]], list[int]]


class WrongAnswerError(KVSpecError):
    """Two ways gave different hits."""


@dataclass(frozen=True)
class Row:
    """One number of prompts of one length: seconds of each round, by contestant."""

    num_prompts: int
    num_tokens: int
    seconds: Mapping[str, list[float]]

    @property
    def gain(self) -> Spread:
        """Time of the host's faster way, over the device's, by rounds."""
        host = min((self.seconds[name] for name in (MANAGER, HOST)), key=lambda t: spread(t).median)
        return ratio(host, self.seconds[DEVICE])


class Waiting:
    """A manager with cached beginnings, and its indexes, for prompts of one length."""

    def __init__(self, num_tokens: int, device: torch.device) -> None:
        self.num_tokens = num_tokens
        self.generator = torch.Generator().manual_seed(num_tokens)
        self.cached = self._tokens(NUM_CACHED, num_tokens // 2)
        spec = FullAttentionSpec(BLOCK_SIZE, 1, 8, "float16")
        num_blocks = NUM_CACHED * (num_tokens // 2 // BLOCK_SIZE + 1) + 1
        cache = KVCacheConfig(num_blocks, (KVCacheGroup(("layer",), spec),))
        self.implementation = kvfast.implementation()
        self.manager = self.implementation.create(
            ManagerConfig(cache, num_tokens), check_invariants=False
        )
        for number, prompt in enumerate(self.cached):
            request = self.implementation.make_request(
                self.manager, RequestInput(str(number), prompt)
            )
            self.manager.allocate_slots(request, len(prompt))
        host = PrefixIndex(self.implementation, self.manager)
        given = Crossover(1)
        on_device = PrefixIndex(self.implementation, self.manager, device=device, crossover=given)
        self.contestants: dict[str, Lookup] = {
            MANAGER: self.by_manager,
            HOST: lambda tokens, starts: host.lookup(tokens, starts).tolist(),
            DEVICE: lambda tokens, starts: on_device.lookup(tokens, starts).tolist(),
        }

    def _tokens(self, num: int, length: int) -> torch.Tensor:
        return torch.randint(LARGEST_TOKEN + 1, (num, length), generator=self.generator)

    def prompts(self, num: int) -> tuple[torch.Tensor, list[int]]:
        """Return new prompts in one tensor, and where each begins."""
        first = self.cached[torch.arange(num) % NUM_CACHED]
        rest = self._tokens(num, self.num_tokens - first.shape[1])
        starts = range(0, num * self.num_tokens + 1, self.num_tokens)
        return torch.cat((first, rest), 1).flatten(), list(starts)

    def by_manager(self, tokens: torch.Tensor, starts: list[int]) -> list[int]:
        """Look up without an index."""
        inputs = [RequestInput("waiting", tokens[a:b]) for a, b in pairwise(starts)]
        requests = self.implementation.make_requests(self.manager, inputs)
        look_up = self.manager.get_computed_blocks
        return [look_up(request).hit_length_tokens for request in requests]

    def measured(self, num_prompts: int, num_rounds: int) -> Row:
        """Time every round, each in rotated order, after one that is not counted."""
        seconds: dict[str, list[float]] = {name: [] for name in self.contestants}
        names = list(self.contestants)
        for number in range(num_rounds + 1):
            given = self.prompts(num_prompts)
            answers = []
            for name in names[number % 3 :] + names[: number % 3]:
                start = time.perf_counter()
                answers.append(self.contestants[name](*given))
                if number:
                    seconds[name].append(time.perf_counter() - start)
            if any(one != answers[0] for one in answers) or not sum(answers[0]):
                raise WrongAnswerError(f"{num_prompts} prompts of {self.num_tokens} tokens")
        return Row(num_prompts, self.num_tokens, seconds)


def crossover_of(rows: Sequence[Row]) -> int | None:
    """Return the least number of prompts from which the device was faster in all rows, or None.

    Faster means: at the lower quartile of the rounds.
    """
    slower = [row.num_prompts for row in rows if row.gain.low <= 1]
    return min(
        (n for n in {r.num_prompts for r in rows} if n > max(slower, default=0)), default=None
    )


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.device.hashing", description=__doc__)
    parser.add_argument("--device", default="cuda", help="cuda (default), cuda:1, …, or cpu")
    parser.add_argument("--quick", action="store_true", help="few and short prompts, few rounds")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    if device.type == "cuda":
        if not torch.cuda.is_available():
            print(
                "There is no CUDA device. --device cpu --quick only shows that it runs.",
                file=sys.stderr,
            )
            return 2
        torch.cuda.set_device(device)
    powers, lengths, num_rounds = (3, (64,), 3) if arguments.quick else (13, (512, 4096), 9)
    print(", ".join(f"{name}: {fact}" for name, fact in machine(device).items()))
    print("\n| prompts | tokens of each | way | ms (quartiles) | of the device's |")
    print("|---:|---:|---|---:|---:|")
    rows = []
    for num_tokens in lengths:
        waiting = Waiting(num_tokens, device)
        for power in range(powers):
            rows.append(waiting.measured(1 << power, num_rounds))
            for line in lines(rows[-1]):
                print(line, flush=True)
    print(f"\nCrossover(num_prompts={crossover_of(rows)})")
    return 0


def lines(row: Row) -> Iterator[str]:
    """Yield a row of the table for each contestant."""
    for name, times in row.seconds.items():
        ms = spread([1000 * one for one in times])
        times_as_long = ratio(times, row.seconds[DEVICE])
        yield (
            f"| {row.num_prompts:,} | {row.num_tokens:,} | {name}"
            f" | {ms.median:.3g} ({ms.low:.3g} … {ms.high:.3g}) | {times_as_long.median:.2f} |"
        )


if __name__ == "__main__":
    sys.exit(main())
