"""The page of `kvspec whatif`: what it contains, and what it shows in a browser."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

from kvcheck.tools.replay.whatif import Curve, Point
from kvcheck.tools.replay.whatif_page import whatif_page
from kvcheck.tools.replay.whatif_text import Memory
from tests.browser import browse, text_of

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
