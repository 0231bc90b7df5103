"""`kvspec rule`: show a rule and its examples."""

from __future__ import annotations

import click

from kvcheck.cli._options import impl_option
from kvcheck.cli._support import closest, fail, say
from kvcheck.discovery import find_implementation
from kvcheck.rulebook import rule_sentences, rule_text, stated
from kvcheck.rules.notation.running import drawn_story
from kvcheck.rules.notation.shipped import written_stories


@click.command()
@click.argument("rule", metavar="RULE")
@impl_option("Implementation that runs the examples", default="kvref")
def command(rule: str, name: str) -> int:
    """Show a rule, its examples, and what happens in them, line by line.

    RULE is an id such as KV-SW-2. Below each line of an example that changes the manager, the block
    lists and the free queue of IMPL are shown; * marks a cached block, - the null block.
    """
    rule = rule.upper()
    if rule not in rule_sentences():
        fail(f"no rule {rule!r}{closest(rule, rule_sentences())}")
    lines = [stated(rule), "", rule_text(rule)]
    for story in written_stories():
        if story.rules[0] == rule:
            where = f"{story.path}:{story.lines[0].number}"
            lines += ["", f"{story.name}   ({where})", ""]
            lines += drawn_story(story, find_implementation(name))
    say(*lines)
    return 0
