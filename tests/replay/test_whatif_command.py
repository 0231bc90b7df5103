"""`kvspec whatif`: what it prints, and its page, also in a browser."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from kvcheck.cli import main
from kvcheck.tools.replay.whatif import Curve, Point
from kvcheck.tools.replay.whatif_page import whatif_page
from kvcheck.tools.replay.whatif_text import Memory
from tests.browser import browse, text_of
from tests.cases import Case, cases
from tests.commands import said_by


def run(*arguments: str) -> int:
    return main(["whatif", *arguments])


def test_several_traces_and_block_sizes_stand_side_by_side(tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    traces = ("demo", "synth:chat?requests=20&seed=1")
    sizes = ("--block-size", "64", "--block-size", "512", "--sizes", "5")
    assert run(*traces, *sizes, "--json", str(found)) == 0
    curves = json.loads(found.read_text())["curves"]
    assert [(each["trace"], each["block_size"]) for each in curves] == [
        (trace, size) for trace in ("demo", curves[2]["trace"]) for size in (64, 512)
    ]
    assert all(each["points"][-1]["lru"] <= each["infinite"] + 1e-12 for each in curves)


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = '{"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [%s]}\n'
    (tmp_path / "alone.jsonl").write_text("".join(line % number for number in (1, 2)))
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("case", cases(__file__, "whatif.txt"), ids=str)
def test_what_is_said(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    case.expect(said_by(case.given[0], capsys))


@pytest.mark.usefixtures("alone")
def test_page_and_json_say_so_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("alone.jsonl", "--sizes", "2", "--html", "page.html") == 0
    assert "100.0%" not in (tmp_path / "page.html").read_text(encoding="utf-8")
    memory = ("--model", "llama-3.1-8b", "--memory-gib", "1")
    assert run("demo", *memory, "--memory-gib", "2", "--json", "found.json") == 0
    written = json.loads((tmp_path / "found.json").read_text())
    assert written["model"] == {
        "name": "llama-3.1-8b",
        "bytes_per_token": 131_072,
        "block_size": 16,
    }
    assert [each["num_blocks"] for each in written["curves"][0]["points"]] == [512, 1024]
    capsys.readouterr()
    assert main(["replay", "demo", *memory]) == 0
    assert "512 blocks of 16 tokens, invariants not checked" in capsys.readouterr().out


def test_a_replay_names_the_layers_of_its_model(capsys: pytest.CaptureFixture[str]) -> None:
    memory = ("--model", "gpt-oss-20b", "--memory-gib", "0.5", "--limit", "3")
    assert main(["replay", "demo", *memory, "--json", "-"]) == 0
    options = json.loads(capsys.readouterr().out)["options"]
    assert (options["model"], options["memory_gib"]) == ("gpt-oss-20b", 0.5)
    assert options["groups"] == ["full attention", "sliding window of 128 tokens"]
    assert main(["replay", "demo", *memory]) == 0
    said = capsys.readouterr().out
    assert "gpt-oss-20b in 0.5 GiB on each worker: full attention; sliding window of" in said


def test_whatif_writes_the_replays_of_a_model_with_windows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = tmp_path / "found.json"
    memory = ("--model", "gpt-oss-20b", "--memory-gib", "0.5", "--memory-gib", "1")
    assert run("demo", *memory, "--limit", "150", "--jobs", "2", "--json", str(found)) == 0
    (curve,) = json.loads(found.read_text())["curves"]
    for point in curve["points"]:
        alone = (*memory[:3], str(point["memory_gib"]), "--max-running", "1", "--limit", "150")
        capsys.readouterr()
        assert main(["replay", "demo", *alone, "--json", "-"]) == 0
        replayed = json.loads(capsys.readouterr().out)
        assert replayed["hit_rate"] == point["hit_rate"] < curve["infinite"]
        assert replayed["options"]["num_blocks"] == point["num_blocks"]


SMALL = Curve(
    "a/small.jsonl", 64, 10, 0.5, 9, (Point(5, 0.25, 0.4), Point(9, 0.45, 0.5), Point(17, 0.5, 0.5))
)
LARGE = Curve("b/<large> & $x.jsonl", 64, 20, 0.8, 33, (Point(9, 0.1, 0.6), Point(33, 0.75, 0.8)))


POLICY = Curve(
    "demo", 64, 10, 0.5, 9, (Point(5, 0.25, 0.4, {"arc": 0.3}), Point(9, 0.45, 0.5, {"arc": 0.5}))
)
MEMORY = Memory("a model", 2**20)


def drawn(
    program: str,
    folder: Path,
    curves: list[Curve],
    fragment: str = "",
    do: str = "",
    memory: Memory | None = None,
) -> str:
    file = folder / "page.html"
    text = whatif_page(curves, memory)
    end = text.rindex("</body>")
    file.write_text(f"{text[:end]}<script>{do}</script>{text[end:]}", "utf-8")
    return browse(program, folder, f"{file.as_uri()}{fragment}", "--dump-dom")


def answers(document: str) -> list[str]:
    found = re.search(r'<div id="answers".*?>(.*?)</div>\s*</div>\s*</div>\s*<h2>', document, re.S)
    assert found is not None
    boxes = re.findall(r"<div><b>(.*?)</b>(.*?)</div>", found[1])
    return [re.sub("<[^>]+>", "|", "|".join(box)).rstrip("|") for box in boxes]


def test_the_page_loads_nothing_and_has_all_numbers_without_a_script() -> None:
    loads: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            loads.extend(name for name, _ in attrs if name in ("src", "href", "srcset"))

    page = whatif_page([SMALL, LARGE])
    Reader().feed(page)
    assert loads == []
    assert "default-src 'none'" in page
    for cell in ("25.00%", "40.00%", "50.0%", "endless", "2,048", "33 blocks (2,048 tokens)"):
        assert cell in page
    assert "<large>" not in page


def test_the_chosen_pool_is_answered(chromium: str, tmp_path: Path) -> None:
    document = drawn(chromium, tmp_path, [SMALL], "#tokens=256")
    assert text_of(document, "size") == "5 blocks, 256 tokens"
    assert answers(document) == [
        "25.00%|hit rate|50.0% of an endless pool's hits",
        "40.00%|best possible (Belady)|15.00 points more",
        "50.00%|endless pool|25.00 points more",
        "9 blocks|for 90% of an endless pool's hits|512 tokens",
    ]


def test_other_orders_and_the_memory_of_a_model_are_there(chromium: str, tmp_path: Path) -> None:
    document = drawn(chromium, tmp_path, [POLICY], "#tokens=256", memory=MEMORY)
    assert text_of(document, "size") == "5 blocks, 256 tokens, 0.25 GiB"
    assert "30.00%|arc" in answers(document)
    assert document.count('class="curve policy c1"') == 1
    assert "9 blocks (512 tokens), 0.50 GiB, give" in document


def test_slider_and_click_choose_and_pointing_shows(chromium: str, tmp_path: Path) -> None:
    script = """
    const seen = [];
    const look = () => seen.push([byId("size").textContent, location.hash]);
    byId("pool").value = 2;
    byId("pool").dispatchEvent(new Event("input"));
    look();
    const frame = byId("lines").getBoundingClientRect();
    const at = { clientX: frame.left + plot.x(256) + 3, clientY: frame.top + 50 };
    byId("lines").dispatchEvent(new PointerEvent("pointermove", at));
    seen.push(byId("tip").innerText.split(/\\s+/).join(" "));
    byId("lines").dispatchEvent(new PointerEvent("click", at));
    look();
    byId("lines").dispatchEvent(new PointerEvent("pointerleave", at));
    seen.push(byId("tip").hidden);
    document.body.append(element("pre", { id: "answer" }, JSON.stringify(seen)));
    """
    document = drawn(chromium, tmp_path, [SMALL, LARGE], do=script)
    chosen, tip, clicked, hidden = json.loads(text_of(document, "answer"))
    assert chosen == ["17 blocks, 1,024 tokens", "#tokens=1024"]
    assert clicked == ["5 blocks, 256 tokens", "#tokens=256"]
    assert "small.jsonl 25.00% 40.00%" in tip
    assert "<large> & $x.jsonl – –" in tip
    assert hidden is True
