"""python -m examples.tiny_engine.demo: chats with one system prompt, and the blocks they share.

    --svg FILE   write the picture of a moment in the middle there, and end
    --fast       do not slow down for the eye

The model's output makes no sense: its weights are random. The demo shows where its keys and values
are. Each character of the pool is a block.
"""

from __future__ import annotations

import argparse
import io
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

import kvfast
from examples.tiny_engine.engine import Engine, EngineConfig, Sequence
from examples.tiny_engine.model import Model, ModelConfig

SYSTEM_PROMPT_TOKENS = 24
NUM_TURNS = 3
WORDS = "kv block page slot hit free pool token cache evict touch prefix group window"
COLORS = ("cyan", "magenta", "yellow", "green", "blue", "red")


@dataclass
class Chat:
    """One conversation: `tokens` are those of all turns so far."""

    name: str
    color: str
    tokens: list[int]
    turns: int = 0
    sequence: Sequence | None = None


class Demo:
    """Chats that take turns on one engine with a second tier in host memory."""

    def __init__(self) -> None:
        self.random = Random(4)
        model = Model(ModelConfig(windows=(None, 8, None, 8)))
        config = EngineConfig(
            num_blocks=72, max_running=4, max_tokens=24, num_drafts=1, num_host_blocks=256
        )
        self.engine = Engine(model, kvfast.implementation(), config)
        system = self.words(SYSTEM_PROMPT_TOKENS)
        self.chats = [
            Chat(f"chat {number + 1}", color, list(system)) for number, color in enumerate(COLORS)
        ]
        self.queries = self.hits = self.steps = 0

    def words(self, num: int) -> list[int]:
        """Draw random words of a speaker."""
        return [self.random.randrange(97) for _ in range(num)]

    @property
    def is_over(self) -> bool:
        """Whether every chat has had its turns."""
        return self.engine.is_idle and all(chat.turns == NUM_TURNS for chat in self.chats)

    def step(self) -> None:
        """Let a chat speak now and then; the engine does a step."""
        for chat in self.chats:
            one = chat.sequence
            if one is not None and one.request.num_tokens >= one.length_tokens:
                chat.tokens = list(one.request.token_ids)
                chat.sequence = None
            elif one is None and chat.turns < NUM_TURNS and self.random.random() < 0.4:
                chat.turns += 1
                prompt = [*chat.tokens, *self.words(self.random.randint(3, 9))]
                name = f"{chat.name}, turn {chat.turns}"
                chat.sequence = self.engine.add(name, prompt, self.random.randint(6, 14))
        self.engine.step()
        self.steps += 1
        stats = self.engine.manager.make_prefix_cache_stats()
        if stats is not None:
            self.queries += stats.queries_tokens
            self.hits += stats.hits_tokens

    def picture(self) -> Group:
        """Return the chats, the pool, the numbers."""
        return Group(self._chats(), self._pool(), self._numbers())

    def _chats(self) -> Table:
        table = Table(expand=True, box=None, pad_edge=False)
        for heading in ("chat", "turn", "state", "tokens", "says"):
            table.add_column(heading, style="dim" if heading == "turn" else "")
        words = WORDS.split()
        for chat in self.chats:
            one, state = chat.sequence, "listens"
            if one is not None:
                state = "answers" if one in self.engine.running else "waits"
                if state == "answers" and one.num_left > 1:
                    state = "is read"
            generated = [] if one is None else one.generated
            said = " ".join(words[token % len(words)] for token in generated[-7:])
            tokens = len(chat.tokens) if one is None else one.request.num_tokens
            name = Text(chat.name, style=chat.color)
            table.add_row(name, f"{chat.turns}/{NUM_TURNS}", state, str(tokens), said)
        return table

    def _pool(self) -> Panel:
        manager, owners = self.engine.manager, Counter[int]()
        color = dict[int, str]()
        for chat in self.chats:
            if chat.sequence is not None:
                for ids in manager.get_blocks(chat.sequence.request).groups:
                    owners.update(block for block in ids if block)
                    color.update(dict.fromkeys(ids, chat.color))
        keys = manager.snapshot().block_keys
        text = Text()
        for block in range(1, self.engine.config.num_blocks):
            if owners[block] > 1:
                text.append("█", style="bold white")
            elif owners[block]:
                text.append("█", style=color[block])
            elif keys[block]:
                text.append("▒", style="bright_black")
            else:
                text.append("·", style="bright_black")
        legend = Text("\n█", style="bold white")
        legend.append(" shared   ", style="default")
        legend.append("█", style=self.chats[0].color)
        legend.append(" of one chat   ", style="default")
        legend.append("▒", style="bright_black")
        legend.append(" free, content kept   ", style="default")
        legend.append("·", style="bright_black")
        legend.append(" free", style="default")
        return Panel(text.append_text(legend), title="the pool, block by block", title_align="left")

    def _numbers(self) -> Text:
        engine, host = self.engine, self.engine.host
        rate = 100 * self.hits / self.queries if self.queries else 0.0
        loaded = 0 if host is None else host.num_loaded_tokens
        copied = 0 if host is None else host.num_copies_out
        return Text(
            f"step {self.steps}   hit rate {rate:.0f} % ({self.hits} of {self.queries} tokens)   "
            f"to the host {copied} blocks   back {loaded} tokens   "
            f"preempted {engine.num_preemptions}   drafts right {engine.num_accepted}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.tiny_engine.demo")
    parser.add_argument("--svg", type=Path, help="write a picture of the middle there")
    parser.add_argument("--fast", action="store_true", help="do not slow down for the eye")
    arguments = parser.parse_args()
    demo = Demo()
    console = Console()
    if arguments.svg:
        while demo.steps < 24:
            demo.step()
        record = Console(width=92, record=True, file=io.StringIO(), force_terminal=True)
        record.print(demo.picture())
        record.save_svg(str(arguments.svg), title="python -m examples.tiny_engine.demo")
        return
    with Live(demo.picture(), console=console, auto_refresh=False) as live:
        while not demo.is_over:
            demo.step()
            if console.is_terminal:
                live.update(demo.picture(), refresh=True)
                time.sleep(0 if arguments.fast else 0.08)
        live.update(demo.picture(), refresh=True)


if __name__ == "__main__":
    main()
