"""`python -m bench.engines`: vLLM's scheduler, stock and on kvfast, by phases, as ratios.

    python -m bench.engines --trace mooncake_conversation.jsonl.gz --into bench/RESULTS.md

Both run in one process, in random order in each round, and must make equal plans. Needs vLLM with a
made-up model only: no weights, no device. `--quick` shows that it runs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bench.tables import put


def main() -> None:
    """See the top of this file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="three rounds of small loads")
    parser.add_argument("--only", default="", help="loads whose names contain this")
    parser.add_argument("--trace", type=Path, help="Mooncake's conversation trace")
    parser.add_argument(
        "--into", type=Path, metavar="FILE", help="between its lines for the version"
    )
    given = parser.parse_args()
    from bench.engines.load import cases
    from bench.engines.report import tables
    from bench.engines.rounds import Measured
    from examples.vllm.engine import model_folder, prepare
    from kvfast.engines.vllm.versions import is_since

    prepare()
    model, measured = model_folder(), []
    for case in cases(given.trace):
        if given.only not in case.name or (given.quick and case.is_long):
            continue
        measured.append(Measured(case, model, 3 if given.quick else given.rounds))
        print(case.name, measured[-1].ratio(("schedule", "update")), file=sys.stderr, flush=True)
    if not measured:
        sys.exit(f"no load {given.only!r}")
    words = [given.trace.name if word == str(given.trace) else word for word in sys.argv[1:]]
    lines = list(tables(measured, " ".join(["python -m bench.engines", *words])))
    put(lines, "engines-0.33" if is_since(33) else "engines", given.into)


if __name__ == "__main__":
    main()
