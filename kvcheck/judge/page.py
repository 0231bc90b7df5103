"""The report of a run as one page that needs nothing else: no network, no script."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from kvcheck.judge.applying import counts_of, rule_outcomes
from kvcheck.judge.outcome import (
    BROKEN,
    HIDDEN,
    IN_DOUBT,
    NOT_APPLICABLE,
    NOT_EXERCISED,
    UNBROKEN,
    VERDICTS,
    Report,
    RuleOutcome,
)
from kvcheck.judge.report import expected_rows, known_as, said, test_of, verdict_of
from kvcheck.play.situations import SITUATIONS
from kvcheck.play.text import operation_text
from kvcheck.play.verdicts import Violation
from kvcheck.rulebook import rule_names, rule_sentences, titled

SHOWN: Mapping[str, str] = {
    UNBROKEN: "good",
    BROKEN: "bad",
    IN_DOUBT: "none",
    NOT_EXERCISED: "none",
    NOT_APPLICABLE: "none",
    HIDDEN: "none",
}
"""The class of each verdict in the page's style."""

STYLE = """
:root { color-scheme: light dark; --text: #1b1b1b; --dim: #5c5c5c; --page: #fff; --panel: #f4f4f2;
        --line: #d8d8d4; --good: #00694e; --bad: #b3261e; --bad-page: #fbeceb; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e8e8e6; --dim: #a3a3a0; --page: #161616; --panel: #212120; --line: #3a3a38;
          --good: #5fc9a5; --bad: #ff8a80; --bad-page: #3a1d1b; } }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page);
       max-width: 60rem; margin: 0 auto; padding: 1.2rem 1rem 4rem; overflow-wrap: anywhere; }
h1 { font-size: 1.4rem; margin: 0.4rem 0; line-height: 1.3; }
h2 { font-size: 1.1rem; margin: 2.2rem 0 0.6rem; }
p { margin: 0.3rem 0; } .dim { color: var(--dim); }
.verdict { border-left: 5px solid var(--good); padding: 0.2rem 0 0.2rem 0.9rem; }
.verdict.bad { border-color: var(--bad); }
.good { color: var(--good); } .bad { color: var(--bad); } .none { color: var(--dim); }
.counts { display: flex; flex-wrap: wrap; gap: 0.6rem; margin: 1rem 0 0; padding: 0; }
.counts div { flex: 1 1 8rem; background: var(--panel); border-radius: 6px;
              padding: 0.5rem 0.8rem; }
.counts b { display: block; font-size: 1.5rem; font-variant-numeric: tabular-nums; }
details { border: 1px solid var(--line); border-radius: 6px; margin: 0.5rem 0; }
summary { cursor: pointer; padding: 0.5rem 0.8rem; }
details[open] > summary { border-bottom: 1px solid var(--line); }
details > div { padding: 0.5rem 0.8rem 0.8rem; }
details.broken > summary { background: var(--bad-page); color: var(--text); }
.id { font-weight: 600; margin-right: 0.4rem; }
pre, code, ol { font: 13px/1.5 ui-monospace, monospace; }
pre { background: var(--panel); border-radius: 6px; padding: 0.6rem 0.8rem; overflow-x: auto;
      overflow-wrap: normal; }
ol { padding-left: 2.2rem; margin: 0.5rem 0; }
li.last { color: var(--bad); font-weight: 600; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0.2rem 1rem; margin: 0.6rem 0; }
dt { color: var(--dim); } dd { margin: 0; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: 0.3rem 1rem 0.3rem 0; font-weight: normal;
         border-top: 1px solid var(--line); }
tr:first-child > * { border-top: none; }
th { white-space: nowrap; } td.number { text-align: right; font-variant-numeric: tabular-nums; }
@media (max-width: 40rem) {
  table.rules, table.rules tbody, table.rules tr, table.rules th, table.rules td
    { display: block; border: none; padding: 0; }
  table.rules tr { border-top: 1px solid var(--line); padding: 0.45rem 0; }
  table.rules tr:first-child { border-top: none; }
  dl { grid-template-columns: 1fr; } dd { margin-bottom: 0.4rem; } }
"""


def report_html(report: Report, remarks: Sequence[str] = ()) -> str:
    """The page. `remarks`: one line for each violation, where it was recorded for instance."""
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title(report))}</title>",
        f"<style>{STYLE}</style></head><body>",
        *_head(report),
        *_expected(report),
        *_violations(report, remarks),
        "<h2>Rules</h2>",
        *_chapters(report),
        "<h2>Situations</h2>",
        "<p class=dim>What came up in the programs that were run, and how often. What never came up"
        " was checked by nothing.</p>",
        _situations(report),
        *_left_out(report),
        "</body></html>",
        "",
    ]
    return "\n".join(parts)


def title(report: Report) -> str:
    """The verdict in one line."""
    return f"{report.options.name} {verdict_of(report)}"


def _head(report: Report) -> Iterator[str]:
    options = report.options
    kind = "" if report.conforms else " bad"
    yield f'<div class="verdict{kind}"><h1>{escape(title(report))}</h1>'
    facts = [
        *_static(report),
        f"{report.directed:,} directed and {report.random:,} random programs",
        f"compared with {options.oracle}" if options.level != "safety" else "compared with nothing",
        f"rules {', '.join(options.rules)}" if options.rules != ("*",) else "all rules",
        f"seed {options.seed}",
        f"{report.seconds:,.0f} s",
    ]
    if report.gave_up:
        facts.append("gave up: too many programs hang")
    if report.interrupted:
        facts.append("interrupted")
    yield f'<p class="dim">{escape(" · ".join(facts))}</p></div>'
    counts = counts_of(rule_outcomes(report))
    boxes = (
        f'<div><b class="{SHOWN[kind]}">{counts[kind]}</b>{escape(kind)}</div>'
        for kind in VERDICTS
        if counts[kind] or kind not in (IN_DOUBT, NOT_APPLICABLE, HIDDEN)
    )
    yield f'<div class="counts">{"".join(boxes)}</div>'
    if report.unseen:
        unseen = ", ".join(report.unseen)
        yield f'<p class="dim">Not seen, since no snapshot is shown: {escape(unseen)}.</p>'


def _static(report: Report) -> Iterator[str]:
    """What was followed of the static vectors."""
    if report.static.walks:
        yield f"{report.static.operations:,} recorded operations"


def _violations(report: Report, remarks: Sequence[str]) -> Iterator[str]:
    if not report.violations:
        return
    yield "<h2>What is broken</h2>"
    for number, violation in enumerate(report.violations):
        remark = remarks[number] if number < len(remarks) else ""
        yield from _violation(report, violation, remark)


def _expected(report: Report) -> Iterator[str]:
    """What a file of known differences says of the findings."""
    if report.expected is None:
        return
    yield f"<h2>Beside {escape(report.expected.file)}</h2><table>"
    for state, finding, remark in expected_rows(report.expected):
        shown = "bad" if state in ("new", "gone") else "none"
        yield (
            f'<tr><td class="{shown}">{state}</td><td>{escape(titled(finding.rule))}</td>'
            f"<td>{escape(finding.cause)}<br>{escape(', '.join(finding.shown_by))}</td>"
            f"<td>{escape(remark)}</td></tr>"
        )
    yield "</table>"


def _violation(report: Report, violation: Violation, remark: str) -> Iterator[str]:
    title, sentence = titled(violation.rule), rule_sentences().get(violation.rule, "")
    known = known_as(report, violation)
    yield f'<details class="{"whole" if known else "broken"}"><summary>'
    yield f'<span class="id">{escape(title)}</span> {escape(sentence)}</summary><div>'
    if violation.operations:
        yield f"<p>In {escape(repr(violation.program.name))}, after these operations:</p><ol>"
        last = len(violation.operations)
        for number, (name, request, arguments) in enumerate(violation.operations, 1):
            mark = ' class="last"' if number == last else ""
            yield f"<li{mark}>{escape(operation_text(name, request, arguments))}</li>"
        yield "</ol>"
    else:
        yield f"<p>In the example {escape(repr(violation.program.name))}.</p>"
    expected, observed = said(violation)
    like = violation.like and f"the reference where this is wrong: {violation.like}"
    rows = [("expected", expected), ("observed", observed), ("just as", like), ("record", remark)]
    rows += [("known", known.reason or "no reason given")] if known else []
    cells = (f"<dt>{name}</dt><dd>{escape(text)}</dd>" for name, text in rows if text)
    yield f"<dl>{''.join(cells)}</dl><p>As a test:</p>"
    yield f"<pre>{escape(test_of(report.options, violation))}</pre></div></details>"


def _chapters(report: Report) -> Iterator[str]:
    """The rules, one chapter each: KV-POOL-* and so on."""
    found = rule_outcomes(report)
    chapters: dict[str, list[str]] = {}
    for rule in found:
        chapters.setdefault(rule.rpartition("-")[0], []).append(rule)
    names, sentences = rule_names(), rule_sentences()
    for chapter, rules in chapters.items():
        counts = Counter(found[rule].verdict for rule in rules)
        summary = ", ".join(
            f'<span class="{SHOWN[kind]}">{counts[kind]} {kind}</span>'
            for kind in VERDICTS
            if counts[kind]
        )
        kind = "broken" if counts[BROKEN] else "whole"
        yield f'<details class="{kind}"><summary><span class="id">{escape(chapter)}</span>'
        rows = (_rule_row(rule, names[rule], sentences[rule], found[rule]) for rule in rules)
        yield f'{summary}</summary><div><table class="rules">{"".join(rows)}</table>'
        yield "</div></details>"


def _rule_row(rule: str, name: str, sentence: str, found: RuleOutcome) -> str:
    told = f"{found.verdict}<br>{escape(found.reason)}" if found.reason else found.verdict
    return (
        f"<tr><th>{escape(rule)}<br>{escape(name)}</th><td>{escape(sentence)}</td>"
        f'<td class="{SHOWN[found.verdict]}">{told}</td></tr>'
    )


def _situations(report: Report) -> str:
    rows = (
        f"<tr><td>{escape(meaning)}</td>{_count(report.situations[name])}</tr>"
        for name, meaning in SITUATIONS.items()
    )
    return f"<table>{''.join(rows)}</table>"


def _count(count: int) -> str:
    return f'<td class="number{"" if count else " bad"}">{f"{count:,}" if count else "never"}</td>'


def _left_out(report: Report) -> Iterator[str]:
    kinds = (
        ("sets of static vectors", report.static.left_out),
        ("directed programs", report.left_out),
    )
    if any(left_out for _, left_out in kinds):
        yield "<h2>Left out</h2>"
    for kind, left_out in kinds:
        if not left_out:
            continue
        rows = (
            f"<tr><td>{escape(name)}</td><td>{escape(', '.join(lacks))}</td></tr>"
            for name, lacks in left_out.items()
        )
        summary = f"{len(left_out)} {kind} need what is not among the capabilities"
        yield f"<details><summary>{summary}</summary><div><table>{''.join(rows)}"
        yield "</table></div></details>"
