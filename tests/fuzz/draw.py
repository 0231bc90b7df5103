"""Drawing stories: lines of text, legal and hostile ones mixed, the same for the same seed."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tests.fuzz.arguments import Arguments
from tests.fuzz.configs import draw_config
from tests.fuzz.corpus import written
from tests.fuzz.reach import Reached

SNAPSHOT_MEMBERS = (
    "num_blocks", "free_queue", "ref_counts", "block_keys", "lookup_order", "covered_tokens",
    "none_hash", "requests", "popped_blocks", "new_block_ids", "step_keys", "reserved_blocks",
)  # fmt: skip


def draw_story(seed: str, reached: tuple[Reached, ...], length: int = 40) -> tuple[list[str], bool]:
    """The lines of a story, and whether errors are checked to change nothing."""
    random = Random(seed)
    drawn = Story(random, reached)
    for _ in range(length):
        drawn.draw_line()
    return drawn.lines, random.random() < 0.5


class Story(Arguments):
    """A story in the making: its lines, and the names they gave to objects."""

    def __init__(self, random: Random, reached: tuple[Reached, ...]) -> None:
        super().__init__(random)
        self.reached = reached
        self.reaches = random.random() < 0.25
        self.has_threads = random.random() < 0.1
        self.kinds: tuple[tuple[int, Callable[[], None]], ...] = (
            (24, self.usual), (18, self.manager_call), (6, self.allocation), (12, self.batch_call),
            (6, self.step), (8, self.request_call), (3, self.copies), (3, self.tier_call),
            (3, self.new_request), (1, self.death), (6, self.inner), (2, self.threads),
        )  # fmt: skip
        for _ in range(random.choice((1, 1, 1, 2))):
            self.new_manager()
        for _ in range(random.choice((2, 3, 5))):
            self.new_request()

    def draw_line(self) -> None:
        """One more line; an empty one where what was drawn isn't there."""
        kinds = [draw for _, draw in self.kinds]
        self.random.choices(kinds, [weight for weight, _ in self.kinds])[0]()

    def say(self, line: str) -> None:
        self.lines.append(line)

    # Making objects.

    def new_manager(self) -> None:
        clock = ""
        if self.random.random() < 0.4:
            mood = self.random.choice(("still", "back", "raises", "float", "huge", "acts"))
            clock = f", clock=Clock({mood!r}{self.act() if mood == 'acts' else ''})"
        config = written(draw_config(self.random))
        name = self.new("m")
        self.say(f"{name} = create({config}{clock})")
        if self.random.random() < 0.5:
            self.new_batch(name)

    def new_batch(self, manager: str) -> None:
        batch = self.new("b")
        self.home[batch] = manager
        self.say(f"{batch} = batched({manager})")

    def new_request(self) -> None:
        manager = self.one("m")
        name = self.random.choice(("'a'", "'b'", "'c'", "'d'", "'e'", "'f'", "'ü' * 99"))
        if self.random.random() < 0.03:
            name = "Named('f')"
        prompt = self.prompt()
        more = self.random.choices(
            (
                "", ", cache_salt='s'", ", lora=LoRA('l', 3)", ", skip_reading_cache=True",
                ", multimodal=(MultimodalItem('x', 1, 3), MultimodalItem('y', 5, 1))",
                ", prompt_embeddings=PromptEmbeddings(b'12345678', 2)",
            ),
            (20, 1, 1, 1, 1, 1),
        )[0]  # fmt: skip
        made = self.new("r")
        self.home[made] = manager
        roll = self.random.random()
        if roll < 0.85:
            self.say(f"{made} = request({manager}, {name}, {prompt}{more})")
        elif roll < 0.9:
            kind = self.random.choice(("kvref", "other build"))
            self.say(f"{made} = foreign({kind!r}, {manager})")
        else:
            threads = self.hostile_count() if self.random.random() < 0.3 else "3"
            self.say(
                f"{made} = requests({manager}, [{prompt}, {self.prompt()}, [7] * 2000], {threads})"
            )

    def copies(self) -> None:
        manager = self.one("m")
        roll = self.random.random()
        if roll < 0.3:
            self.say(f"{self.new('m')} = clone({manager})")
        elif roll < 0.5 or not self.has("s"):
            self.say(f"{self.new('s')} = {manager}.snapshot()")
        elif roll < 0.6:
            self.say(f"{self.new('m')} = restore({manager}.config, {self.one('s')})")
        else:
            member = self.random.choice(SNAPSHOT_MEMBERS)
            tampered = f"tamper({self.one('s')}, {member!r}, {self.random.randrange(10**6)})"
            self.say(f"{self.new('m')} = restore({manager}.config, {tampered})")

    def death(self) -> None:
        kind = self.random.choice("mbrt")
        if len(self.made[kind]) > 1:
            name = self.one(kind)
            self.made[kind].remove(name)
            self.say(f"forget({name!r})")

    # Calls.

    def usual(self) -> None:
        manager, request = self.pair()
        roll = self.random.random()
        if roll < 0.45:
            most = self.random.choice(("", "", ", 3", ", 8"))
            self.say(f"admit({manager}, {request}{most})")
        elif roll < 0.85:
            drafted = self.random.choice(("", "", "", ", 2"))
            self.say(
                f"go_on({manager}, {request}, {self.random.choice((1, 1, 2, 5, 30))}{drafted})"
            )
        else:
            self.say(f"{manager}.free({request})")

    def manager_call(self) -> None:
        manager = self.one("m")
        r, count, flag, ids = self.a_request(manager), self.count(), self.flag(), self.ids()
        call = self.random.choice(
            (
                f"get_computed_blocks({r})", f"find_longest_cache_hit_per_group({r}, {count})",
                f"cache_blocks({r}, {count})", f"remove_skipped_blocks({r}, {count})",
                f"cache_partial_block({r}, {self.count()}, {count})", f"free({r})",
                f"free_blocks({ids})", f"free_blocks({ids})", f"evict_blocks({ids})",
                f"withdraw({r}, {count})",
                "reset_prefix_cache()", "new_step_starts()", "take_new_block_ids()",
                "take_events()", "take_residency_samples()", "make_prefix_cache_stats()",
                f"get_blocks({r})", f"get_unhashed_block_ids({r})", "usage", "num_free_blocks",
                f"get_num_common_prefix_blocks({r})", f"append_tokens({r}, {self.tokens()})",
                f"get_num_blocks_to_allocate({r}, num_tokens={count}, total_computed_tokens="
                f"{self.count()}, num_tokens_main_model={self.count()}, num_encoder_tokens="
                f"{self.count()}, apply_admission_cap={flag})",
                f"pop_blocks_for_free({r})",
            )
        )  # fmt: skip
        made = f"{self.new('q')} = " if call.startswith("pop") else ""
        self.say(f"{made}{manager}.{call}")

    def allocation(self) -> None:
        manager = self.one("m")
        request = self.a_request(manager)
        options = []
        for name in ("num_lookahead_tokens", "num_external_computed_tokens", "num_encoder_tokens"):
            if self.random.random() < 0.25:
                options.append(f"{name}={self.count()}")
        if self.random.random() < 0.15:
            options.append(f"reserved_blocks={self.count()}")
        for name in ("delay_cache_blocks", "full_sequence_must_fit", "has_scheduled_reqs"):
            if self.random.random() < 0.2:
                options.append(f"{name}={self.flag()}")
        roll = self.random.random()
        if roll < 0.4:
            options.append(f"**hit({manager}, {request if request in self.made['r'] else 'None'})")
        elif roll < 0.7:
            options += [
                f"num_new_computed_tokens={self.count()}",
                f"new_computed_blocks={self.hits()}",
            ]
        given = "".join(f", {option}" for option in options)
        self.say(f"{manager}.allocate_slots({request}, {self.count()}{given})")

    def batch_call(self) -> None:
        if not self.has("b"):
            self.new_batch(self.one("m"))
            return
        batch, counts = self.one("b"), self.counts()
        handles, home = self.handles(batch), self.home[batch]
        call = self.random.choice(
            (
                *(f"register({self.a_request(home)})" for _ in range(5)),
                f"unregister({handles})", f"request_of({self.count()})",
                f"append({handles}, {self.tokens()}, {counts})",
                f"append({handles}, {self.tokens()})",
                f"rewind({handles}, {counts})", f"lookup({handles})", f"free({handles})",
                f"preempt({handles})", f"take_deltas({self.delta_rows()})",
                f"admit({handles}, {counts}, token_budget={self.count()}, reserved_blocks="
                f"{self.count()}, stops_at_refusal={self.flag()}, output={self.output()})",
                f"admit({handles}, output={self.output()})", "num_pending_deltas()",
                f"decode({handles}, {counts}, num_lookahead_tokens={self.count()}, "
                f"output={self.output()})",
                f"decode({handles}, output={self.output()})",
                f"next_free_blocks({self.count()})", f"list_lengths({handles})",
            )
        )  # fmt: skip
        self.say(f"{batch}.{call}")

    def step(self) -> None:
        if not self.has("b"):
            return
        batch = self.one("b")
        members = ""
        if self.random.random() < 0.4:
            for name in ("finished", "preempted", "decoding", "prefilling", "new"):
                if self.random.random() < 0.15:
                    members += f", {name}={self.handles(batch)}"
            for name in ("decode_tokens", "prefill_tokens", "max_new_tokens"):
                if self.random.random() < 0.2:
                    members += f", {name}={self.counts()}"
            for name in ("token_budget", "num_lookahead_tokens", "reserved_blocks"):
                if self.random.random() < 0.15:
                    members += f", {name}={self.count()}"
            for name in ("full_sequence_must_fit", "stops_at_refusal", "starts_step"):
                if self.random.random() < 0.1:
                    members += f", {name}={self.flag()}"
        plan = f"plan({batch}, {self.random.randrange(10**6)}{members})"
        self.say(f"{batch}.step({plan}, {self.output()})")

    def request_call(self) -> None:
        r = self.one("r")
        a, b, c = self.index(), self.index(), self.random.choice(("None", "1", "2", "-1", "0"))
        view = self.random.choice(("token_ids", "block_hashes"))
        self.say(
            self.random.choice(
                (
                    f"{r}.append({self.tokens()})", f"{r}.{view}[{a}]", f"{r}.{view}[{a}:{b}:{c}]",
                    f"list({r}.{view})", f"repr({r}.{view})", f"{r}.{view} == {self.tokens()}",
                    f"{self.count()} in {r}.{view}", f"{r}.{view}.index({self.count()}, {a})",
                    f"list(reversed({r}.{view}))", f"hash({r}), repr({r}), {r} == {r}",
                    f"inside(lambda: type({r}.{view})({self.thing()})[{a}])",
                    f"{r}.num_computed_tokens = {self.count()}",
                    f"{r}.num_computed_tokens = 0",
                    f"{r}.num_preemptions = {self.count()}",
                    f"{r}.status = {self.status()}",
                    f"for x in {r}.{view}: {r}.append([1] * 9) if {r}.num_tokens < 99 else 0",
                )
            )
        )  # fmt: skip

    def tier_call(self) -> None:
        if not self.has("t"):
            # Not a large count: a snapshot lists every free block.
            size = self.random.choice(
                ("6", "6", "100", "0", "-1", "2**53", "True", "Lie(8, 2**40)")
            )
            self.say(f"{self.new('t')} = tier({self.one('m')}, {size})")
            return
        r, count, ids = self.a_request(), self.count(), self.ids()
        call = self.random.choice(
            (
                f"lookup({r}, {count})", f"hold({r}, {count}, {self.count()})", f"drop({r})",
                f"taken({ids})", f"load({r}, {self.hits()})",
                f"computed({r}, {self.count()}, {count}, {ids})", f"forget({ids})", "reset()",
                "snapshot()",
            )
        )  # fmt: skip
        self.say(f"{self.one('t')}.{call}")

    def inner(self) -> None:
        """What no document names, of whatever object."""
        if not self.reaches or not self.reached:
            return
        found = self.random.choice(self.reached)
        if not self.has(found.root):
            return
        path = f"{self.one(found.root)}{found.path}"
        roll = self.random.random()
        if found.is_callable and roll < 0.9:
            given = ", ".join(self.thing() for _ in range(self.random.choice(found.arities)))
            self.say(f"inside(lambda: {path}({given}))")
        elif roll < 0.5 or "__" in found.path:
            self.say(f"inside(lambda: list({path}))")
        else:
            owner, _, name = path.rpartition(".")
            self.say(f"inside(lambda: setattr({owner}, {name!r}, {self.thing()}))")

    def threads(self) -> None:
        if self.has_threads:
            acts = ", ".join(
                f"lambda: {self.short_call()}" for _ in range(self.random.choice((2, 4)))
            )
            self.say(f"threads({acts})")
