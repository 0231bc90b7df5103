"""Write the report of a run as a single HTML page that needs no network and no other file."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import zip_longest

from kvcheck.judge.applying import counts_of, rule_outcomes
from kvcheck.judge.findings import Finding
from kvcheck.judge.outcome import Report, RuleOutcome, Verdict
from kvcheck.judge.report import (
    calls,
    expected_rows,
    facts,
    known_as,
    more_ways,
    test_of,
    verdict_of,
    way_of,
)
from kvcheck.play.situations import SITUATIONS
from kvcheck.play.verdicts import Violation
from kvcheck.rulebook import rule_chapters, rule_names, rule_sentences, rule_text, titled
from kvcheck.view.model import Recording
from kvcheck.view.page import content, data_file, document, embedded, filled

SHOWN: Mapping[str, str] = {
    **dict.fromkeys(Verdict, "none"),
    Verdict.UNBROKEN: "good",
    Verdict.BROKEN: "bad",
}
"""The CSS class of each verdict."""


def report_html(
    report: Report, remarks: Sequence[str] = (), stories: Sequence[Recording | None] = ()
) -> str:
    """Return the page.

    For each violation, `remarks` may hold a line, such as where it was recorded, and `stories` a
    recording to draw.
    """
    body = [
        *_head(report),
        *_expected(report),
        *_violations(report, remarks, stories),
        "<h2>Rules</h2>",
        *_chapters(report),
        "<h2>Situations</h2>",
        "<p class=dim>How often each situation occurred in the programs that were run. Situations"
        " that never occurred were not checked.</p>",
        _situations(report),
        *_left_out(report),
        *_script(stories),
    ]
    return document(title(report), body, style=data_file("check.css"))


def title(report: Report) -> str:
    return f"{report.options.name} {verdict_of(report)}"


def _head(report: Report) -> Iterator[str]:
    options = report.options
    kind = "" if report.conforms else " bad"
    yield f'<div class="verdict{kind}"><h1>{escape(title(report))}</h1>'
    facts = [
        f"{report.directed:,} examples and {report.random:,} random programs",
        "judged by the safety invariants"
        if options.level == "safety"
        else f"compared with {options.oracle}",
        f"rules {', '.join(options.rules)}" if options.rules != ("*",) else "all rules",
        f"seed {options.seed}",
        f"{report.seconds:,.0f} s",
    ]
    if report.gave_up:
        facts.append("stopped early: too many programs hang")
    if report.interrupted:
        facts.append("interrupted")
    if report.options.fail_fast and report.violations:
        facts.append("stopped at the first failure")
    yield f'<p class="dim">{escape(" · ".join(facts))}</p></div>'
    counts = counts_of(rule_outcomes(report))
    boxes = (
        f'<div><b class="{SHOWN[kind]}">{counts[kind]}</b>{escape(kind)}</div>'
        for kind in Verdict
        if counts[kind] or kind not in (Verdict.IN_DOUBT, Verdict.NOT_APPLICABLE, Verdict.HIDDEN)
    )
    yield f'<div class="counts">{"".join(boxes)}</div>'
    if report.unseen:
        unseen = ", ".join(report.unseen)
        yield f'<p class="dim">Not checked, since there is no snapshot: {escape(unseen)}.</p>'


def _script(stories: Sequence[Recording | None]) -> Iterator[str]:
    """Yield the page of `kvspec view`, which draws every recording, and the script that uses it."""
    shell = embedded(filled("A story", "@@STORY@@")) if any(stories) else "null"
    yield f'<script type="application/json" id="view">{shell}</script>'
    yield f"<script>{data_file('check.js')}</script>"


def _violations(
    report: Report, remarks: Sequence[str], stories: Sequence[Recording | None]
) -> Iterator[str]:
    """Yield all violations; only the first that is not a known difference is unfolded."""
    if not report.violations:
        return
    yield "<h2>Broken rules</h2>"
    is_open = True
    rows = zip_longest(report.violations, remarks, stories[: len(report.violations)])
    for violation, remark, story in rows:
        known = known_as(report, violation)
        kind = "whole" if known else "broken"
        yield f'<details class="{kind}"{" open" if is_open and not known else ""}><summary>'
        is_open = is_open and bool(known)
        yield from _violation(report, violation, remark or "", known, story)


def _expected(report: Report) -> Iterator[str]:
    """Yield the comparison of the findings with the file of known differences."""
    if report.expected is None:
        return
    yield f"<h2>Compared with {escape(report.expected.file)}</h2><table>"
    for state, finding, remark in expected_rows(report.expected):
        shown = "bad" if state in ("new", "no longer found") else "none"
        yield (
            f'<tr><td class="{shown}">{state}</td><td>{escape(titled(finding.rule))}</td>'
            f"<td>{escape(finding.cause)}<br>{escape(', '.join(finding.shown_by))}</td>"
            f"<td>{escape(remark)}</td></tr>"
        )
    yield "</table>"


def _violation(
    report: Report,
    violation: Violation,
    remark: str,
    known: Finding | None,
    story: Recording | None,
) -> Iterator[str]:
    sentence = rule_sentences().get(violation.rule, "")
    number, ways = way_of(violation, report.violations)
    more = more_ways(report, violation.rule) if violation.rule in report.more else ""
    notes = [f"{number} of {ways}"] * (ways > 1) + [more] * (bool(more) and number == ways)
    noted = f' <span class="dim">({", ".join(notes)})</span>' if notes else ""
    rule = violation.rule
    link = f'<a class="id" href="#{escape(rule)}">{escape(titled(rule))}</a>'
    yield f"{link} {escape(sentence)}{noted}</summary><div>"
    rows = facts(violation, remark)
    rows += [("known", known.reason or "no reason given")] if known else []
    cells = (f"<dt>{name}</dt><dd>{escape(text)}</dd>" for name, text in rows)
    yield f"<dl>{''.join(cells)}</dl>"
    told = list(calls(violation))
    if told:
        lines = [f"<li>{escape(call)}</li>" for call in told[:-1]]
        yield f'<ol start="0">{"".join(lines)}<li class="last">{escape(told[-1])}</li></ol>'
    if story is not None:
        data = embedded(content(story))
        yield f'<div class="story"><script type="application/json">{data}</script></div>'
    if violation.messages:
        yield "<details><summary>As messages of spec/protocol.md, with the last reply</summary>"
        yield f"<pre>{escape(chr(10).join(violation.messages))}</pre></details>"
    else:
        yield "<details><summary>As a test</summary>"
        yield f"<pre>{escape(test_of(report.options, violation))}</pre></details>"
    yield "</div></details>"


def _chapters(report: Report) -> Iterator[str]:
    """Yield the rules, folded by chapter."""
    found = rule_outcomes(report)
    titles = rule_chapters()
    chapters: dict[str, list[str]] = {}
    for rule in found:
        chapters.setdefault(titles.get(rule, "Not in a chapter"), []).append(rule)
    for chapter, rules in chapters.items():
        counts = Counter(found[rule].verdict for rule in rules)
        summary = ", ".join(
            f'<span class="{SHOWN[kind]}">{counts[kind]} {kind}</span>'
            for kind in Verdict
            if counts[kind]
        )
        kind = "broken" if counts[Verdict.BROKEN] else "whole"
        yield f'<details class="{kind}"><summary><span class="id">{escape(chapter)}</span>'
        rows = (_rule_row(found[rule]) for rule in rules)
        yield f'{summary}</summary><div><table class="rules">{"".join(rows)}</table>'
        yield "</div></details>"


def _rule_row(found: RuleOutcome) -> str:
    rule = found.rule
    names, sentences = rule_names(), rule_sentences()
    told = f"{found.verdict}<br>{escape(found.reason)}" if found.reason else found.verdict
    text = escape(sentences.get(rule, ""))
    if found.verdict in (Verdict.BROKEN, Verdict.IN_DOUBT):
        text += (
            f"<details><summary>More</summary><div>{_explained(rule_text(rule))}</div></details>"
        )
    return (
        f'<tr id="{escape(rule)}"><th>{escape(rule)}<br>{escape(names.get(rule, ""))}</th>'
        f'<td>{text}</td><td class="{SHOWN[found.verdict]}">{told}</td></tr>'
    )


def _explained(text: str) -> str:
    """Render the subset of Markdown that chapters use as HTML."""
    parts = []
    for number, block in enumerate(re.split(r"^```(?:kv)?\n", text, flags=re.MULTILINE)):
        if number % 2:
            parts.append(f"<pre>{escape(block)}</pre>")
            continue
        parts += map(_paragraph, filter(None, re.split(r"\n{2,}", block.strip("\n"))))
    return "".join(parts)


def _paragraph(part: str) -> str:
    if part.startswith(("    ", "|")):
        return f"<pre>{escape(part)}</pre>"
    said = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(part))
    bold = re.sub(r"[*]{2}(.+?)[*]{2}", r"<b>\1</b>", said, flags=re.DOTALL)
    return f"<p>{bold}</p>"


def _situations(report: Report) -> str:
    rows = (
        f"<tr><td>{escape(meaning)}</td>{_count(report.situations[name])}</tr>"
        for name, meaning in SITUATIONS.items()
    )
    return f"<table>{''.join(rows)}</table>"


def _count(count: int) -> str:
    return f'<td class="number{"" if count else " bad"}">{f"{count:,}" if count else "never"}</td>'


def _left_out(report: Report) -> Iterator[str]:
    if not report.left_out:
        return
    yield "<h2>Left out</h2>"
    rows = (
        f"<tr><td>{escape(name)}</td><td>{escape(', '.join(lacks))}</td></tr>"
        for name, lacks in report.left_out.items()
    )
    number = len(report.left_out)
    summary = f"{number} examples need features that the implementation does not declare"
    yield f"<details><summary>{summary}</summary><div><table>{''.join(rows)}"
    yield "</table></div></details>"
