"""Damaged and hostile input and options: each is read, or refused within bounds."""

from __future__ import annotations

import copy
import gzip
import importlib
import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import cbor2
import click
import pytest
import zstandard

from kvcheck.cli import main
from kvcheck.cli._commands import COMMANDS
from kvcheck.records.select import shipped_records
from kvcheck.remote import codec
from kvcheck.tools.plans.document import decode_plan_file, read_plan_file
from kvcheck.tools.plans.model import MOST_LAYERS, MOST_WORKER_LAYERS
from kvspec.errors import CacheMemoryError, FormatError, InvalidArgumentError, UnknownBlockError
from kvspec.files import stream
from kvspec.files.jsonlines import parse_json, read_document, read_objects
from kvspec.files.objects import Where, real
from kvspec.profile import read_profile
from kvspec.record_file import MOST_BYTES, read_header, read_trace, read_whole_trace
from kvspec.record_lines import MOST_BLOCKS
from tests.cases import Case, cases, every_second, repeated
from tests.input.fuzz import HOLES
from tests.input.readers import READERS
from tests.plans.files import SMALL
from tests.source import ROOT

HERE = Where("here")
HUGE: int = 10**5_000
RECORD = shipped_records() / "life_of_blocks.jsonl"


def profile(data: bytes, path: Path) -> object:
    path.write_bytes(data)
    return read_profile(path)


READ: dict[str, Callable[[bytes, Path], object]] = {
    "json": lambda data, path: parse_json(data, HERE),
    "cbor": lambda data, path: codec.decode(data, "cbor"),
    "profile": profile,
}


@pytest.mark.parametrize("case", cases(__file__, "bounds.txt"), ids=str)
def test_what_is_too_much_is_one_line(case: Case, tmp_path: Path) -> None:
    reader, *in_hex = case.name.partition(":")[0].split(" ", 1)
    text = repeated("\n".join(case.given))
    content = bytes.fromhex(text) if in_hex else text.encode()
    with pytest.raises(FormatError) as caught:
        READ[reader](content, tmp_path / "it")
    assert case.said[0] in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", [b"[18446744073709551615]", b"[-9223372036854775808, 1.5]"])
def test_all_that_fits_64_bits_is_read(text: bytes) -> None:
    assert json.dumps(parse_json(text, HERE)).encode() == text


def test_an_int_that_is_no_double_is_no_number() -> None:
    with pytest.raises(FormatError, match="not a finite number"):
        real(10**400, HERE)


@pytest.mark.parametrize(
    "error",
    [
        lambda: InvalidArgumentError("n", HUGE, "small"),
        lambda: InvalidArgumentError("n", [HUGE], "small"),
        lambda: UnknownBlockError(HUGE, 4),
        lambda: CacheMemoryError(4, 2**1100, 5, 0),
        lambda: HERE.error("x" * 10**6),
        lambda: HERE.member("x" * 10**6).error("unknown"),
    ],
)
def test_an_error_about_a_huge_value_can_be_read(error: Callable[[], Exception]) -> None:
    assert 5 < len(str(error())) < 3_000


def test_a_thousand_names_are_compared_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count comparisons: all pairs of 60,000 names would take minutes."""
    compared = 0

    class Name(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    loads = json.loads

    def named(text: str, **hooks: Any) -> Any:
        unique = hooks["object_pairs_hook"]
        return loads(text, object_pairs_hook=lambda pairs: unique([(Name(n), v) for n, v in pairs]))

    monkeypatch.setattr("kvspec.files.jsonlines.json.loads", named)
    names = [*(f'"n{number}": 0' for number in range(1_000)), '"n999": 0']
    with pytest.raises(FormatError, match="field 'n999': given twice"):
        parse_json(("{" + ", ".join(names) + "}").encode(), HERE)
    assert compared < 10_000


@pytest.mark.parametrize("number", [30_000])
def test_many_layers_are_compared_once_each(number: int) -> None:
    """Rely on the test's time limit: comparing all pairs would take minutes."""
    layer = {"type": "FullAttentionSpec", "block_size": 16, "num_kv_heads": 1}
    layer |= {"head_size": 8, "dtype": "float16"}
    layers = [[f"layer.{index}", layer] for index in range(number)]
    document = {"format": "kvspec-plan", "version": 1, "memory_gib": 1}
    document |= {"engine": {"max_model_len": 64}, "workers": [[*layers, layers[-1]]]}
    with pytest.raises(FormatError, match="is given twice"):
        decode_plan_file(document, HERE)


Pack: TypeAlias = Callable[[bytes], bytes]


def zstd(content: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(content)


@pytest.mark.parametrize("packed", [gzip.compress, zstd], ids=["gzip", "zstd"])
@pytest.mark.parametrize("filling", [b" ", b"[", b"9", b"\xff"], ids=["blank", "[", "9", "ff"])
def test_a_line_without_end_is_given_up_at_its_limit(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    packed: Pack,
    filling: bytes,
) -> None:
    """Count what was unpacked: not everything, and little more than the limit."""
    path = tmp_path / "bomb"
    path.write_bytes(packed(filling * 2**26))
    unpacked = 0
    original = stream.uncompressed

    def counted(raw: io.BufferedReader) -> Any:
        nonlocal unpacked
        for piece in original(raw):
            unpacked += len(piece)
            yield piece

    monkeypatch.setattr("kvspec.files.jsonlines.uncompressed", counted)
    with pytest.raises(FormatError, match="line 1: longer than 16777216 bytes"):
        list(read_objects(path))
    assert unpacked < 3 * stream.MAX_LINE_BYTES


def test_a_record_that_is_kept_in_memory_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "record.jsonl.gz"
    path.write_bytes(gzip.compress(RECORD.read_bytes()))
    assert len(read_whole_trace(path)[1]) > 10
    monkeypatch.setattr("kvspec.record_file.MOST_BYTES", 2_000)
    with pytest.raises(FormatError, match="more than 2000 bytes up to here"):
        read_whole_trace(path)
    assert len(list(read_trace(path))) > 10
    assert MOST_BYTES == 2**26


def test_a_record_asks_for_no_more_blocks_than_memory_has(tmp_path: Path) -> None:
    header, *rest = RECORD.read_text().splitlines()
    value = json.loads(header)
    path = tmp_path / "record.jsonl"
    for number, fits in ((MOST_BLOCKS, True), (MOST_BLOCKS + 1, False), (2**53 - 1, False)):
        value["config"]["num_blocks"] = number
        path.write_text("\n".join([json.dumps(value), *rest]))
        with pytest.raises(FormatError) as caught:
            read_header(path)
        is_too_many = "config.num_blocks': " + f"{number}: must be at most 1048576"
        assert (is_too_many in str(caught.value)) is not fits, "the state is written otherwise, too"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"num_layers": 10**8}, f"num_layers': 100000000: must be at most {MOST_LAYERS}"),
        ({"tensor": 10**6}, f"layers on all workers: must be at most {MOST_WORKER_LAYERS}"),
    ],
)
def test_a_plan_has_as_many_layers_as_can_be_planned(changes: dict[str, int], problem: str) -> None:
    document = copy.deepcopy(dict(SMALL))
    document["model"]["num_layers"] = changes.get("num_layers", 4)
    document["parallel"] = {"tensor": changes.get("tensor", 1)}
    with pytest.raises(FormatError) as caught:
        decode_plan_file(document, HERE)
    assert problem in str(caught.value)


@pytest.mark.parametrize("member", ["engine", "parallel"])
def test_an_option_needs_an_object_to_change(tmp_path: Path, member: str) -> None:
    path = tmp_path / "m.json"
    path.write_text(json.dumps({**copy.deepcopy(dict(SMALL)), member: 7}))
    option = {"engine": "engine.max_model_len", "parallel": "parallel.tensor"}[member]
    with pytest.raises(FormatError, match=f"field '{member}': 7 is not an object"):
        read_plan_file(path, {option: 1})


def test_a_file_without_end_is_not_read_to_its_end(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="longer than 1000 bytes"):
        read_document(Path("/dev/zero"), most_bytes=1_000)


def test_a_cbor_message_that_doubles_what_it_shares_is_given_up() -> None:
    """Send two hundred bytes that expand to 2^30 values."""
    value: Any = {"a": 0}
    for _ in range(30):
        value = {"a": [value, value]}
    body = cbor2.dumps(value, value_sharing=True)
    assert len(body) < 400
    with pytest.raises(FormatError, match="hold one another"):
        codec.decode(body, "cbor")


def run(reader: str, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.input.fuzz", reader, *more]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("reader", READERS)
def test_damaged_input_is_read_or_refused(reader: str, request: pytest.FixtureRequest) -> None:
    number = 20_000 if request.config.getoption("--deep") else 150
    done = run(reader, "--inputs", str(number))
    assert done.returncode == 0, done.stdout + done.stderr[-2_000:]


@pytest.mark.parametrize("hole", every_second(HOLES))
def test_a_planted_hole_is_found(hole: str) -> None:
    done = run(HOLES[hole][0], "--inputs", "150", "--hole", hole)
    assert done.returncode != 0, "not found"
    assert ": error:" not in done.stderr, "the fuzzer itself was called wrongly"


VALUES = (
    *("9" * 5_000, "1000000000000000", "-1", "0", "1e400", "-inf", "nan", "", "²", "x"),
    *("x" * 5_000, "\udcff", "cmd:", "a:b", ".", "nothing/at/all", "?seed=9", "-"),
)

RECORD_OF_OPTIONS = str(shipped_records() / "identities.jsonl")
HISTORY = str(ROOT / "examples/hazards/vllm-52360.jsonl")
QUICK: Mapping[str, Sequence[str]] = {
    "bench": ["--impl", "nowhere"],
    "check": ["kvref", "--budget", "static", "--level", "safety"],
    "doctor": [],
    "examples": ["kvref", "--rules", "KV-SW-1"],
    "explore": ["--list"],
    "golden": [RECORD_OF_OPTIONS, "--impl", "kvref"],
    "hazards": [HISTORY],
    "plan": ["llama-3.1-8b"],
    "probe": ["nowhere"],
    "prompts": ["demo", "--limit", "1"],
    "redact": [RECORD_OF_OPTIONS, "-o", "out"],
    "replay": ["demo", "--impl", "kvref", "--limit", "1", "--quiet"],
    "rule": ["KV-SW-1"],
    "serve": ["nowhere"],
    "shrink": [RECORD_OF_OPTIONS, "--impl", "kvref", "-o", "out"],
    "vectors": ["--set", "rswa", "-o", "out"],
    "view": [RECORD_OF_OPTIONS, "-o", "out"],
    "whatif": ["demo", "--limit", "1", "--sizes", "2"],
}
"""Arguments with which a command is soon done."""

LONG = ("--limit",)
"""What takes long with a value that is right, as any folder or large number of requests is."""


def calls(name: str) -> Iterator[list[str]]:
    """Yield the command with each of its options and arguments in turn."""
    command = importlib.import_module(f"kvcheck.cli.{name}").command
    base = [name, *QUICK[name]]
    for parameter in command.params:
        if parameter.opts[0] in LONG:
            continue
        for value in VALUES:
            if isinstance(parameter, click.Option) and not parameter.is_flag:
                yield [*base, parameter.opts[0], value]
            elif isinstance(parameter, click.Argument) and QUICK[name]:
                yield [name, value, *QUICK[name][1:]]


@pytest.mark.parametrize("name", [entry.name for entry in COMMANDS])
def test_an_option_with_nonsense_is_one_line(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    wrong = []
    for arguments in calls(name):
        code = main(arguments)
        said = capsys.readouterr().err
        shown = [argument[:30] for argument in arguments]
        if code not in (0, 1, 2) or "Traceback" in said:
            wrong.append((shown, code, said[-300:]))
        elif code == 2 and not said.startswith("kvspec: error: "):
            wrong.append((shown, code, said[:300]))
    assert not wrong
