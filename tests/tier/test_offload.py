"""First tiers of chunks: both twins conform and agree, and each mistake is found by its rule."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kvcheck.adapters import lmcache
from kvcheck.adapters.vllm import VLLMUnavailableError, offload
from kvcheck.cli import main
from kvcheck.discovery import find_implementation, find_offload
from kvcheck.mistakes import Mistake
from kvcheck.offload.life import Lower, Player
from kvcheck.offload.suite import RULES, WEIGHTS, drawn, game_of
from kvcheck.play.lives import broken_by, judged
from kvcheck.rules.notation.running import outcomes_of
from kvcheck.rules.notation.shipped import shipped_stories
from kvcheck.rules.notation.story import needs_ids
from kvspec.errors import InvalidArgumentError
from kvspec.offload import Found, OffloadConfig
from kvspec.policy import Policy
from tests.device.mistakes import planted
from tests.planted import IN_VLLM, TABLES, report_of
from tests.source import ROOT

LIVES, MOST_LIVES = 150, 1500
"""Lives that are always played, and until a mistake is found."""
PLANTED = TABLES["tier"][0]
IN_KVFAST = planted(ROOT / "tests/tier/planted/chunks.diff")

BY_EXAMPLE_ALONE = {
    "AnsweredStaysAwaited": "needs a tier full of what an answered request was told of",
}


@pytest.mark.parametrize("name", ["kvref", "kvfast", "kvfast-uncompiled"])
def test_a_twin_keeps_every_rule_and_all_are_tried(name: str) -> None:
    report = judged(game_of(find_offload(name)), num_lives=2 * LIVES)
    assert report.findings == {}
    assert {rule for rule in RULES if not report.tried[rule]} == set()


def test_the_example_of_a_tier_keeps_the_rules_that_it_can_break() -> None:
    report = judged(
        game_of(find_offload("examples.own_manager.offload:implementation")), num_lives=LIVES
    )
    assert report.findings == {}
    untried = {rule for rule in RULES if not report.tried[rule]}
    assert untried == {"KV-TIER-19", "KV-TIER-20", *(f"KV-TIER-{n}" for n in range(25, 34))}


def test_examples_that_name_places_are_for_those_that_promise_ids() -> None:
    stories = {each.name: each for each in shipped_stories()}
    named = [each for each in (*RULES,) if needs_ids(stories[each])]
    assert named == [f"KV-TIER-{n}" for n in (10, 11, 12, 13, 14, 19, 20, 22, 25, 27, 32)]


def test_lives_draw_every_move() -> None:
    lives = [drawn(seed, with_lower=True) for seed in range(20)]
    assert {move.word for life in lives for move in life.moves} == set(WEIGHTS)
    assert {life.num_lower for life in lives} == {0, 1, 2}
    assert {life.num_chunks for life in lives} == {1, 2, 3, 4, 5}


@pytest.mark.parametrize("mistake", PLANTED, ids=lambda each: str(each.id))
def test_a_mistake_is_found_by_an_example_and_by_lives(mistake: Mistake) -> None:
    subject = find_implementation(f"mistake:{mistake.id}")
    stories = [each for each in shipped_stories() if set(each.rules) & set(mistake.rules)]
    assert any(each.violation for each in outcomes_of(stories, subject, Policy()))
    game, named = game_of(find_offload(f"mistake:{mistake.id}")), set[str]()
    for seed in range(LIVES if mistake.id in BY_EXAMPLE_ALONE else MOST_LIVES):
        broken = broken_by(game, game.begun(game.drawn(seed)))
        named |= set() if broken is None else {broken.rule, *broken.others}
        if named & set(mistake.rules):
            break
    assert bool(named & set(mistake.rules)) == (mistake.id not in BY_EXAMPLE_ALONE), named


@pytest.mark.parametrize("name", ["kvref", "kvfast"])
def test_a_promotion_is_no_store_of_a_request_without_a_name(name: str) -> None:
    lower = Lower({b"a"})
    manager = find_offload(name).make_offload(OffloadConfig(1, (lower,)))
    manager.new_request("")
    assert manager.lookup(b"a", "") == Found.PENDING
    with pytest.raises(InvalidArgumentError, match="keys"):
        manager.complete_store([b"a"], "")


def differing(num_lives: int) -> tuple[int | None, int]:
    """Return the seed of the first life that the twins play differently, and the calls so far."""
    ref, other, num_calls = find_offload("kvref"), find_offload("kvfast-uncompiled"), 0
    for seed in range(num_lives):
        life = drawn(seed, with_lower=seed % 2 == 1, offered=ref.offload_capabilities)
        players = Player(ref, life), Player(other, life)
        try:
            for player in players:
                player.play()
        except Exception:  # a planted mistake
            return seed, num_calls
        if players[0].lines != players[1].lines:
            return seed, num_calls
        num_calls += len(players[0].lines)
    return None, num_calls


@pytest.mark.parametrize("seed", [11055])  # a promotion fails, and another request stores the key
def test_lives_that_were_judged_wrong_once(seed: int) -> None:
    game = game_of(find_offload("kvref"))
    assert broken_by(game, game.begun(game.drawn(seed))) is None


def test_the_twins_agree_call_by_call(pytestconfig: pytest.Config) -> None:
    is_deep = pytestconfig.getoption("--deep")
    found, num_calls = differing(30_000 if is_deep else LIVES)
    assert found is None
    assert num_calls > (1_000_000 if is_deep else 5_000)


@pytest.mark.parametrize("mistake", IN_KVFAST, ids=lambda each: str(each.id))
def test_an_off_by_one_in_kvfast_is_found(mistake: Mistake) -> None:
    with mistake.make():
        assert differing(2 * LIVES)[0] is not None


def test_exactly_the_known_differences_are_accepted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known, report = tmp_path / "known.toml", tmp_path / "report.json"
    check = ["check", "--programs", "30", "--tier"]
    assert main([*check, "mistake:PlacesFromOne", "--json", str(report)]) == 1
    told = json.loads(report.read_text(encoding="utf-8"))
    broken = {each["rule"] for each in (*told["findings"], *told["examples"]["failed"])}
    rows = (f'[[known]]\nrule = "{each}"\nreason = "why"\n' for each in sorted(broken))
    known.write_text("".join(rows))
    options = ["--expect", str(known)]
    assert main([*check, "mistake:PlacesFromOne", *options]) == 0
    assert "\nknown: KV-TIER-12: why\n" in capsys.readouterr().out
    assert main([*check, "mistake:FailedPromotionsStay", *options]) == 1
    said = capsys.readouterr().out
    assert "\ngone: KV-TIER-12: why\n" in said
    assert "\nnew: " in said
    known.write_text('[[known]]\nrule = "KV-TIER-12"\n')
    assert main([*check, "kvref", *options]) == 2


@pytest.mark.parametrize("more", [["cmd:true"], ["kvref", "--level", "safety"]])
def test_what_a_tier_is_not_judged_by_is_refused(more: list[str]) -> None:
    assert main(["check", "--tier", *more]) == 2


@pytest.mark.parametrize("make", [offload.offload, offload.offload_arc])
def test_vllm_never_answers_a_prompt_that_its_cpu_tier_cannot_hold(
    make: Callable[[], offload.VLLMOffload],
) -> None:
    try:
        subject = make()
    except VLLMUnavailableError as error:
        pytest.skip(str(error))
    except ModuleNotFoundError as error:
        pytest.skip(f"a vLLM without tiers: {error.name}")
    report = judged(game_of(subject), num_lives=LIVES)
    assert set(report.findings) == {"KV-TIER-22", "KV-TIER-23"}
    untried = {"KV-TIER-16", "KV-TIER-24", *(f"KV-TIER-{number}" for number in range(26, 34))}
    assert {rule for rule in RULES if not report.tried[rule]} == untried


def test_lmcache_keeps_the_rules_of_a_first_tier() -> None:
    try:
        subject = lmcache.l1()
    except lmcache.LMCacheUnavailableError as error:
        pytest.skip(str(error))
    report = judged(game_of(subject), num_lives=LIVES)
    assert report.findings == {}
    assert {rule for rule in RULES[:10] if not report.tried[rule]} == {"KV-TIER-16"}


@pytest.mark.parametrize("mistake", IN_VLLM, ids=lambda each: str(each.about))
def test_a_mistake_in_vllm_is_named_among_the_first_three(mistake: Mistake) -> None:
    try:
        report = report_of(mistake)
    except (VLLMUnavailableError, ModuleNotFoundError) as error:
        pytest.skip(str(error))
    assert mistake.rules[0] in report.named[:3]
