"""What programs play besides the operations of records: residency samples, embeddings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from kvcheck.play.player import Outcome, Player
from kvspec.request import LoRA, MultimodalItem, PromptEmbeddings, RequestInput


@dataclass
class ProgramPlayer(Player):
    """A player that also knows what records have no operation for."""

    def perform(self, name: str, request_id: str | None, arguments: Mapping[str, Any]) -> Outcome:
        """As `Player.perform`, and the operations of `MORE_PLAYS` besides."""
        if name == "new_request" and arguments.get("prompt_embeddings") is not None:
            name = "new_embedded_request"
        if name not in MORE_PLAYS:
            return super().perform(name, request_id, arguments)
        try:
            return Outcome(MORE_PLAYS[name](self, request_id or "", arguments))
        except Exception as error:  # anything an implementation does is its answer
            return Outcome(error=error)


def _new_embedded_request(player: Player, name: str, args: Mapping[str, Any]) -> Any:
    lora = args.get("lora")
    items = args.get("mm_features") or ()
    content = RequestInput(
        name,
        tuple(args["prompt_token_ids"]),
        cache_salt=args.get("cache_salt"),
        lora=None if lora is None else LoRA(lora["name"], lora["id"]),
        multimodal=tuple(MultimodalItem(**item) for item in items),
        prompt_embeddings=PromptEmbeddings(bytes(args["prompt_embeddings"]), 1),
        skip_reading_cache=args.get("skip_reading_prefix_cache", False),
    )
    request = player.implementation.make_request(player.manager, content)
    player.requests[name] = request
    hashes = [block_hash.hex() for block_hash in request.block_hashes]
    return {"num_tokens": request.num_tokens, "block_hashes": hashes}


def _take_residency_samples(player: Player, name: str, args: Mapping[str, Any]) -> Any:
    """How often each life was touched: times are those of a real clock."""
    samples = player.manager.take_residency_samples()
    return [len(sample.reuse_gaps_ns) for sample in samples]


MORE_PLAYS: Mapping[str, Callable[[Player, str, Mapping[str, Any]], Any]] = MappingProxyType(
    {
        "new_embedded_request": _new_embedded_request,
        "take_residency_samples": _take_residency_samples,
    }
)
"""How each operation that no record has is played."""
