"""The small traces that `kvspec replay sample:FORMAT` reads: made up here, taken from no data set.

`python -m tests.replay.samples` writes them again; a test says when they are not current.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from kvcheck.tools.replay.formats.mooncake import record_line
from kvcheck.tools.replay.formats.text import stand_in
from kvcheck.tools.replay.synth import SynthTrace
from tests.source import ROOT

FOLDER = ROOT / "kvcheck" / "data" / "traces"
_TEXT = (
    "river lamp seven window carry blue stone garden letter slow engine bridge cloud answer paper"
    " market silver road winter number kettle copper signal harbour small field north clock open"
    " basket green tower salt iron early question map wheel north table quiet morning glass"
)
WORDS = _TEXT.split()


def text(draws: random.Random, words: int) -> str:
    found = [draws.choice(WORDS) for _ in range(words)]
    sentences = [" ".join(found[start : start + 8]) for start in range(0, words, 8)]
    return ". ".join(each.capitalize() for each in sentences) + "."


def conversations(seed: int) -> list[list[tuple[str, str]]]:
    draws = random.Random(seed)
    preamble = text(draws, 150)
    found = []
    for _ in range(12):
        turns = [("human", f"{preamble}\n\n{text(draws, draws.randint(10, 60))}")]
        for _ in range(draws.randint(1, 4)):
            turns.append(("gpt", text(draws, draws.randint(20, 80))))
            turns.append(("human", text(draws, draws.randint(10, 60))))
        turns.append(("gpt", text(draws, draws.randint(20, 80))))
        found.append(turns)
    return found


def mooncake() -> str:
    trace = SynthTrace("synth:rag?requests=30&seed=3")
    return "".join(record_line(each) + "\n" for each in trace)


def bailian() -> str:
    draws = random.Random(5)
    fresh = iter(range(10_000))
    shared = [next(fresh) for _ in range(20)]
    chats: list[dict[str, Any]] = []
    lines, seconds = [], 0.0
    for number in range(40):
        seconds += draws.randint(0, 4_000) / 1000
        parent = draws.choice(chats) if chats and draws.random() < 0.6 else None
        ids = list(shared if parent is None else parent["whole"])
        length = 16 * len(ids) + draws.randint(30, 600)
        ids += [next(fresh) for _ in range(-(-length // 16) - len(ids))]
        line = {
            "chat_id": number,
            "parent_chat_id": -1 if parent is None else parent["chat_id"],
            "timestamp": round(seconds, 3),
            "input_length": length,
            "output_length": draws.randint(20, 300),
            "type": "text",
            "turn": 1 if parent is None else parent["turn"] + 1,
            "hash_ids": ids,
        }
        lines.append(json.dumps(line) + "\n")
        chats.append({**line, "whole": ids[: length // 16]})
        del chats[:-6]
    return "".join(lines)


def weka() -> str:
    """A session of a coding agent with two subagents, whose times count from their start."""
    draws = random.Random(7)
    fresh = iter(range(10_000))
    system = [next(fresh) for _ in range(40)]

    def calls(ids: list[int], number: int) -> Iterator[dict[str, Any]]:
        seconds = 0.0
        for _ in range(number):
            length = 64 * len(ids) + draws.randint(100, 900)
            whole = ids + [next(fresh) for _ in range(-(-length // 64) - len(ids))]
            yield {
                "t": round(seconds, 3),
                "type": "n",
                "model": "made-up",
                "in": length,
                "out": draws.randint(40, 400),
                "hash_ids": whole,
            }
            ids = whole[: length // 64]
            seconds += draws.randint(2_000, 20_000) / 1000

    entries: list[dict[str, Any]] = list(calls(system, 14))
    for at, name in ((9, "agent_002"), (4, "agent_001")):
        inner = list(calls(system[:25], 4))
        marker = {"t": entries[at]["t"] + 1.5, "type": "subagent", "agent_id": name}
        marker |= {"subagent_type": "made-up", "status": "completed", "requests": inner}
        entries.insert(at + 1, marker)
    head = {"id": "made-up-1", "models": ["made-up"], "block_size": 64, "hash_id_scope": "local"}
    rows = ",\n".join(json.dumps(each) for each in entries)
    return json.dumps(head)[:-1] + f', "requests": [\n{rows}\n]}}\n'


def sharegpt() -> str:
    found = [
        {"id": f"made-up-{number}", "conversations": [{"from": a, "value": b} for a, b in turns]}
        for number, turns in enumerate(conversations(11))
    ]
    return json.dumps(found, indent=1) + "\n"


def messages() -> str:
    draws = random.Random(13)
    system: dict[str, Any] = {"role": "system", "content": text(draws, 200)}
    tools = [{"type": "function", "function": {"name": "read", "description": text(draws, 20)}}]
    lines: list[dict[str, Any]] = []
    for _ in range(4):
        own: list[dict[str, Any]] = [system, {"role": "user", "content": text(draws, 40)}]
        for number in range(draws.randint(3, 6)):
            call = {"name": "read", "arguments": json.dumps({"path": draws.choice(WORDS)})}
            asked = [{"id": f"call-{number}", "type": "function", "function": call}]
            own.append({"role": "assistant", "content": None, "tool_calls": asked})
            own.append({"role": "tool", "content": text(draws, draws.randint(30, 150))})
        own.append({"role": "assistant", "content": text(draws, 60)})
        lines.append({"messages": own, "tools": tools})
    for number in range(8):
        said: list[dict[str, Any]] = [system, {"role": "user", "content": text(draws, 30)}]
        body = {"model": "made-up", "messages": said, "max_tokens": draws.randint(50, 400)}
        url = "/v1/chat/completions"
        lines.append({"custom_id": f"b-{number}", "method": "POST", "url": url, "body": body})
    return "".join(json.dumps(each) + "\n" for each in lines)


def prompts() -> str:
    draws = random.Random(17)
    preamble = text(draws, 180)
    lines = []
    for number in range(24):
        question = text(draws, draws.randint(20, 80))
        prompt = f"{preamble}\n\n{question}" if number % 3 else question
        lines.append({"prompt": prompt, "output_tokens": draws.randint(10, 200)})
    return "".join(json.dumps(each) + "\n" for each in lines)


def vllm_log() -> str:
    """What a server would log of conversations; of two answers it doesn't."""
    draws = random.Random(19)
    moment, found = datetime(2026, 3, 2, 9, 0, 0), []

    def log(level: str, message: str) -> None:
        at = f"{moment:%m-%d %H:%M:%S}"
        found.append(f"(APIServer pid=4711) {level} {at} [request_logger.py:64] {message}\n")

    log("INFO", "made up for kvspec; no server wrote this")
    for number, turns in enumerate(conversations(23)[:7]):
        prompt: list[int] = []
        for turn, (role, words) in enumerate(turns):
            tokens = [each % 50_000 for each in stand_in(words)]
            name = f"chatcmpl-{number:04x}{turn:04x}"
            if role == "gpt":
                moment += timedelta(seconds=draws.randint(1, 9))
                shown = f"prompt: 'made up', prompt_token_ids: {prompt}"
                log("DEBUG", f"Request {name} details: {shown}, prompt_embeds shape: None.")
                params = "params: SamplingParams(n=1, temperature=0.7, max_tokens=512)"
                log("INFO", f"Received request {name}: {params}, lora_request: None.")
                if (number, turn) not in ((0, 1), (3, 1)):
                    said = f"output_token_ids: {tokens}"
                    log("DEBUG", f"Generated response {name} details: {said}")
            prompt += tokens
    return "".join(found)


def burstgpt() -> str:
    """Seconds since the start, and lengths."""
    draws = random.Random(29)
    rows, seconds = ["Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"], 0
    for _ in range(40):
        seconds += draws.randint(0, 9)
        asked, said = draws.randint(20, 3_000), draws.randint(0, 500)
        rows.append(f"{seconds},made-up,{asked},{said},{asked + said},Conversation log")
    return "\n".join(rows) + "\n"


def azure() -> str:
    draws = random.Random(31)
    moment, rows = datetime(2026, 3, 2, 9, 0, 0), ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    for _ in range(40):
        moment += timedelta(microseconds=draws.randint(0, 3_000_000))
        asked, said = draws.randint(20, 3_000), draws.randint(1, 500)
        rows.append(f"{moment:%Y-%m-%d %H:%M:%S.%f}0,{asked},{said}")
    return "\n".join(rows) + "\n"


def samples() -> Mapping[str, str]:
    return {
        "mooncake.jsonl": mooncake(),
        "bailian.jsonl": bailian(),
        "weka.json": weka(),
        "sharegpt.json": sharegpt(),
        "messages.jsonl": messages(),
        "prompts.jsonl": prompts(),
        "vllm-log.log": vllm_log(),
        "burstgpt.csv": burstgpt(),
        "azure.csv": azure(),
    }


def write(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for name, content in samples().items():
        (folder / name).write_text(content, encoding="utf-8")


if __name__ == "__main__":
    write(FOLDER)
