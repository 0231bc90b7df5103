"""Known differences: compare the findings of a run with those that a file lists.

A finding is identified by its cause (the rule of the call that shows it and the name of the check)
and by the directed checks that show it. Blame and the likeness to a mistake depend on a machine's
speed: they are written for the reader and never compared.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from kvcheck.judge.findings import RANDOM, Compared, Finding
from kvcheck.judge.options import Options
from kvcheck.judge.outcome import Report
from kvspec.files.jsonlines import read_bounded
from kvspec.files.objects import Where, checked_members, list_of, text
from kvspec.files.toml import parse_toml

MOST_BYTES, MOST_LINE_BYTES, MOST_TEXT = 2**18, 2**12, 500

HEAD = """\
# Findings of kvspec check, each with a reason; write it where it is empty: it is kept.
# Written by kvspec check --write-expect; read by kvspec check --expect.
"""


@dataclass(frozen=True)
class Asked:
    """The options of a run; all but the subject must equal those in the file."""

    subject: str
    level: str
    profile: str
    oracle: str
    rules: tuple[str, ...]

    @classmethod
    def of(cls, options: Options, profile: str) -> Asked:
        return cls(options.name, str(options.level), profile, options.oracle, options.rules)


def findings(report: Report) -> tuple[Finding, ...]:
    """Return a run's findings, worst first; one that is found in several ways is listed once."""
    found: dict[str, Finding] = {}
    for each in report.violations:
        places = report.shown_by.get(each.cause, (RANDOM,))
        one = found.setdefault(each.cause, Finding(each.rule, each.cause, places))
        found[each.cause] = replace(one, like=one.like or each.like)
    return tuple(found.values())


def compare(file: Path, listed: Sequence[Finding], report: Report) -> Compared:
    seen = {each.cause: each for each in findings(report)}
    wanted = {each.cause: each for each in listed}
    known, new, gone, not_seen = [], [], [], []
    for cause, found in seen.items():
        before = wanted.get(cause)
        more = _without(found, before.shown_by if before else ())
        if more is not None and not (before is not None and more.shown_by == (RANDOM,)):
            new.append(more)
        elif before is not None:
            known.append(replace(found, reason=before.reason))
    for cause, was in wanted.items():
        less = _without(was, seen[cause].shown_by if cause in seen else ())
        unsought = () if less is None else _unsought(less, report)
        sought = None if less is None else _without(less, unsought)
        if sought is not None:
            gone.append(sought)
        elif unsought and cause not in seen:
            not_seen.append(replace(was, shown_by=unsought))
    return Compared(str(file), tuple(known), tuple(new), tuple(gone), tuple(not_seen))


def _without(finding: Finding, places: Sequence[str]) -> Finding | None:
    """Return the finding as other places show it, or None."""
    left = tuple(each for each in finding.shown_by if each not in places)
    return replace(finding, shown_by=left) if left else None


def renewed(listed: Sequence[Finding], report: Report) -> tuple[Finding, ...]:
    """Return the file's findings after this run; keep reasons and what the run did not look for."""
    before = {each.cause: each for each in listed}
    found = []
    for one in findings(report):
        was = before.pop(one.cause, one)
        places = dict.fromkeys([*one.shown_by, *_unsought(was, report)])
        if len(places) > 1:
            places.pop(RANDOM, None)
        found.append(replace(one, shown_by=tuple(places), reason=was.reason))
    left = (replace(was, shown_by=_unsought(was, report)) for was in before.values())
    return (*found, *(each for each in left if each.shown_by))


def _unsought(finding: Finding, report: Report) -> tuple[str, ...]:
    """Return what shows the finding and did not run completely; random programs never do."""
    return tuple(
        each for each in finding.shown_by if each.partition(" ")[0] not in report.looked_at
    )


def read_expected(path: Path, asked: Asked) -> tuple[Finding, ...]:
    """Return a file's findings. Raises FormatError if it is damaged or of another run."""
    where = Where(str(path))
    data = read_bounded(path, most_bytes=MOST_BYTES)
    if max(map(len, data.split(b"\n"))) > MOST_LINE_BYTES:
        raise where.error(f"a line of more than {MOST_LINE_BYTES} bytes")
    names = {"subject": _short, "level": _short, "profile": _short, "oracle": _short}
    found = checked_members(
        parse_toml(data, where), where, {**names, "rules": list_of(_short)}, {"known": _FINDINGS}
    )
    for name, given in asdict(asked).items():
        was = tuple(found[name]) if name == "rules" else found[name]
        if name != "subject" and was != given:
            raise where.member(name).error(f"of another run: {was!r} there, {given!r} here")
    listed = tuple(found.get("known", ()))
    if len({each.cause for each in listed}) < len(listed):
        raise where.member("known").error("a cause is listed twice")
    return listed


def expected_text(asked: Asked, listed: Iterable[Finding]) -> str:
    lines = [f"{name} = {_toml(value)}" for name, value in asdict(asked).items()]
    for each in listed:
        lines += ["", "[[known]]"]
        for name, value in asdict(each).items():
            if value or name != "like":
                lines.append(f"{name} = {_toml(value)}")
    return HEAD + "\n".join(lines) + "\n"


def _toml(value: str | tuple[str, ...]) -> str:
    """Encode a string, or a list with one line per item; JSON escapes are TOML but for DEL."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return "[" + "".join(f"\n  {_toml(each)}," for each in value) + "\n]"


def _short(value: object, where: Where) -> str:
    found = text(value, where)
    if len(found) > MOST_TEXT:
        raise where.error(f"longer than {MOST_TEXT} characters")
    return found


def _finding(value: object, where: Where) -> Finding:
    required = {"rule": _short, "cause": _short, "shown_by": list_of(_short)}
    found = checked_members(value, where, required, {"reason": _short, "like": _short})
    if not found["shown_by"]:
        raise where.member("shown_by").error("empty")
    return Finding(**{**found, "shown_by": tuple(found["shown_by"])})


_FINDINGS = list_of(_finding)
