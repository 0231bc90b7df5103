"""Say in words what went wrong, by the check that failed."""

from __future__ import annotations

import re
from collections.abc import Mapping

from kvcheck.play.agreement import AS_RECORDED, AS_THE_REFERENCE
from kvcheck.play.verdicts import HANG, PROTOCOL, Violation
from kvcheck.rules.judging import ANSWERS, CALL_ENDS, HOLDS

HAPPENED: Mapping[str, str] = {
    "has_the_right_shape": "a block id lies outside the pool, or a group has no list",
    "null_block_is_apart": "the null block is used like any other",
    "free_queue_has_no_duplicates": "a block is in the free queue twice",
    "free_means_unreferenced": "a free block is in use, or an unused one is not free",
    "references_are_accounted_for": "a block has more or fewer references than users",
    "keys_and_lookups_agree": "a look-up misses a block with the key, or finds one without",
    "keys_are_listed_once": "a key or a block is listed twice",
    "keys_are_well_formed": "a key is not a hash followed by a group",
    "nothing_is_cached_with_caching_off": "a block is cached although caching is off",
    "a_block_has_one_place": "a block is in two places of the lists",
    "cached_blocks_belong_to_their_group": "a block is cached for a group that has another",
    "cached_counts_fit_the_lists": "more blocks count as cached than the list has",
    "nulls_come_first": "a null stands behind a block in a list",
    "keys_of_one_place": "the keys of a block belong to several places",
    "keys_are_covered": "a key of a block ends where no hash does",
    "blocks_set_aside_are_alone": "a block that was set aside is used or cached",
    "errors_change_nothing": "a call that raised has changed the state",
    "pure_calls_change_nothing": "a question has changed the state",
    "a_refusal_only_releases": "a refused call has changed more than it may",
    "a_list_only_grows_or_turns_null": "a block of a list was replaced or removed",
    "states_stay_or_move_to_the_end": "a state has moved to another place than the end",
    "blocks_that_stay_keep_their_keys": "a block that stays in its list lost its content",
    "lookups_keep_their_order": "blocks with the same key have changed their order",
    "the_last_token_is_computed": "a hit leaves no token to compute",
    "what_is_read_is_there": "a token that is read has no block",
    "content_is_where_it_is_claimed": "a slot that is read does not hold its token",
    "granted_tokens_have_slots": "a token that was granted has no slot",
    "no_write_to_null": "a token is written to the null block",
    "a_state_is_read_after_its_step": "a request starts from a state that is not computed yet",
    "encoders_have_no_hit": "what depends on an encoder's tokens is a hit",
    "hits_end_at_hashes": "a hit ends where no hash does",
    "keys_claim_what_is_there": "a key covers more tokens than its block has",
    "nobody_writes_what_a_key_names": "content that others can hit is overwritten",
    "copies_read_what_was_there": "a copy reads what is not complete yet",
    "ends_of_copies_are_kept": "a block is given away while a copy needs it",
    "a_new_block_has_one_owner": "a block is handed out as new while a request has it",
    "space_is_conserved": "blocks are lost, or there are more than the pool has",
    "legal_calls_succeed": "a legal call is refused",
    "errors_are_typed": "a call ends with an error that has no type of the contract",
    HANG: "a call does not return",
}


def happened(violation: Violation) -> str:
    call = violation.operations[-1][0] if violation.operations else "a call"
    if violation.rule == PROTOCOL:
        return "a message breaks the protocol"
    if violation.name in HAPPENED:
        return HAPPENED[violation.name]
    if violation.name in (AS_THE_REFERENCE, AS_RECORDED):
        return f"not as the reference: {violation.place or call}"
    if violation.name == HOLDS:
        return violation.observed
    if violation.name != ANSWERS:
        return f"not so: {violation.name.replace('_', ' ')}"
    what = re.sub(r"\[.*", "", violation.expected.partition(":")[0])
    if not what.startswith(CALL_ENDS):
        return f"not as the rule says: {what}"
    call = what.partition("(")[0].removeprefix(CALL_ENDS).removeprefix(", ") or call
    ends = "is accepted" if violation.observed == "'an answer'" else "ends with another error"
    return f"an illegal {call.removeprefix('a ')} {ends}"
