"""Drawing arguments: the usual ones most of the time, else what no caller should pass."""

from __future__ import annotations

from random import Random

SMALL = tuple(str(number) for number in (0, 1, 1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 17, 32, 48, 64))
HUGE = (
    "2**20", "2**31 - 1", "2**31", "2**32 + 1", "2**40", "2**53 - 1", "2**53", "2**62", "2**63 - 1",
    "2**63", "2**64 + 3", "10**30", "-1", "-2**31", "-2**63", "-2**70",
)  # fmt: skip
NO_COUNTS = (
    "True", "False", "None", "1.0", "nan", "inf", "'3'", "b'1'", "[]", "(1,)", "object()",
    "np.int64(3)", "np.int32(-1)", "np.float32(2)", "np.bool_(True)", "Index(3)", "Odd(3)",
    "Odd(2**60)", "Lie(8, -7)", "Lie(8, 2**40)", "Lie(2**70, 3)", "Lie(-3, 3)", "1j",
)  # fmt: skip
DTYPES = ("int32", "int64", "uint32", "int16", "int8", "float64", ">i8", "bool", "object", "uint64")
MOODS = ("grows", "shrinks", "more", "fewer", "endless", "raises", "acts")


class Arguments:
    """Expressions over the objects that a story has made so far."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.lines: list[str] = []
        self.made: dict[str, list[str]] = {kind: [] for kind in "mrbtsq"}
        self.home: dict[str, str] = {}  # of a request or a batch, the manager it was made for
        self.num_made = 0

    # Names.

    def new(self, kind: str) -> str:
        """A new name."""
        name = f"{kind}{self.num_made}"
        self.num_made += 1
        self.made[kind].append(name)
        return name

    def has(self, kind: str) -> bool:
        """Whether there is an object of this kind."""
        return bool(self.made[kind])

    def pair(self) -> tuple[str, str]:
        """A manager and a request, mostly one that was made for it."""
        request = self.one("r")
        home = self.home.get(request)
        is_home = home in self.made["m"] and self.random.random() < 0.9
        return (home if is_home and home else self.one("m")), request

    def one(self, kind: str) -> str:
        """The name of an object, an early one more often."""
        made = self.made[kind]
        return made[min(self.random.randrange(len(made)), self.random.randrange(len(made)))]

    # Values.

    def count(self) -> str:
        """A count of tokens or blocks."""
        roll = self.random.random()
        return self.random.choice(SMALL) if roll < 0.7 else self.hostile_count()

    def hostile_count(self) -> str:
        """A number that is too large or none."""
        roll = self.random.random()
        if roll < 0.55:
            return self.random.choice(HUGE)
        if roll < 0.95:
            return self.random.choice(NO_COUNTS)
        return f"Acting({self.random.choice(SMALL)}{self.act()})"

    def index(self) -> str:
        """An index into a view."""
        return self.random.choice(
            (*SMALL, "-1", "-5", "None", "2**31", "-2**63", "2**70", "Lie(1, -9)")
        )

    def flag(self) -> str:
        """A flag."""
        odd = ("None", "0", "1", "'yes'", "np.bool_(True)", f"Posing(bool{self.act()})")
        return self.random.choice(("True", "False") * 4 + odd)

    def status(self) -> str:
        """What a scheduler may say of a request."""
        members = tuple(f"RequestStatus.{name}" for name in ("WAITING", "RUNNING", "PREEMPTED"))
        odd = ("'RUNNING'", "'x'", "None", "7", "Named('RUNNING')", "object()", "[]")
        return self.random.choice(members * 3 + odd)

    def a_request(self, home: str | None = None) -> str:
        """A request, mostly one of this manager, or something else."""
        if self.random.random() < 0.92:
            mine = [name for name in self.made["r"] if self.home.get(name) == home]
            chosen = mine if mine and self.random.random() < 0.9 else self.made["r"]
            return self.random.choice(chosen)
        r = self.one("r")
        return self.random.choice(
            (
                "None", "'a'", "7", "object()", f"raw(lambda: type({r}).__new__(type({r})))",
                f"raw(lambda: copy.copy({r}))", f"raw(lambda: copy.deepcopy({r}))",
                f"raw(lambda: pickle.loads(pickle.dumps({r})))", f"Posing(type({r}){self.act()})",
                f"raw(lambda: type({r})({self.thing()}, {self.thing()}, 4))",
                f"raw(lambda: type({r})({r}.input, {r}.hasher, {self.count()}))",
            )
        )  # fmt: skip

    def act(self) -> str:
        """`, ` and a function that calls the core, or nothing."""
        return f", lambda: do(lambda: {self.short_call()})"

    def short_call(self) -> str:
        """A call that somebody makes while another one is under way."""
        if not self.has("r"):
            return "None"
        m, r = self.one("m"), self.one("r")
        calls = [
            f"{m}.free({r})", f"admit({m}, {r})", f"go_on({m}, {r}, 1)", f"{r}.append([1] * 40)",
            f"{m}.snapshot()", f"{m}.take_events()", f"{m}.reset_prefix_cache()",
            f"{m}.get_computed_blocks({r})", f"{m}.evict_blocks(range(1, 4))",
            f"{r}.append([1] * 3000)", f"list({r}.block_hashes)", f"clone({m})",
        ]  # fmt: skip
        if self.has("b"):
            b = self.one("b")
            calls += [
                f"{b}.unregister([0])", f"{b}.free([0, 1])", f"{b}.register({r})",
                f"{b}.step(plan({b}, {self.random.randrange(99)}))", f"{b}.take_deltas(rows(9))",
            ]  # fmt: skip
        return self.random.choice(calls)

    # Sequences.

    def numbers(self, most: int, length: int) -> str:
        """A list of small ints."""
        size = self.random.choice((0, 1, 1, 2, 3, length))
        return repr([self.random.randint(0, most) for _ in range(size)])

    def sequence(self, listed: str) -> str:
        """The numbers of this expression, as one sort of sequence or another."""
        if self.random.random() < 0.6:
            return listed
        mood = self.random.choice(MOODS)
        act = self.act() if mood == "acts" else ""
        code = self.random.choice(("i", "q", "q", "l", "h", "Q", "d", "b"))
        dtype = self.random.choice(DTYPES)
        return self.random.choice(
            (
                f"array({code!r}, {listed})", f"array({code!r}, {listed})",
                f"tuple({listed})", f"many({dtype!r}, {listed})", f"many({dtype!r}, {listed})",
                f"frozen(many({dtype!r}, {listed}))", f"strided({dtype!r}, len({listed}))",
                f"memoryview(many({dtype!r}, {listed}))", f"many({dtype!r}, {listed})[:, None]",
                f"Moody({listed}, {mood!r}{act})", f"Moody({listed}, {mood!r}{act})",
                f"Tensor(many({dtype!r}, {listed}){self.act()})", f"MoodyList({listed})",
                f"changing({listed}, {self.random.choice((0, 1, 100))})",
                f"[*{listed}, {self.hostile_count()}]", f"[{self.hostile_count()}, *{listed}]",
                f"array('q', [*{listed}, -3])", f"set({listed})", f"dict.fromkeys({listed})",
                f"iter({listed})", f"({listed} for _ in 'x')", f"Posing(list{self.act()})",
                f"Posing(array{self.act()})", "None", "7", "'123'", "b'123'", "bytearray(16)",
                "range(3)", "range(0, -9, -1)", "range(2**70)", "np.int64(3)", "np.zeros(())",
            )
        )  # fmt: skip

    def ids(self) -> str:
        """Block ids."""
        if self.has("q") and self.random.random() < 0.7:
            popped = f"list({self.one('q')})"
            return self.random.choice((popped, f"{popped}[::-1]", f"{popped}[:2]"))
        return self.sequence(self.numbers(self.random.choice((3, 12, 400)), 9))

    def tokens(self) -> str:
        """Tokens to append."""
        if self.random.random() < 0.1:
            return self.random.choice(
                ("[1] * 3000", "[2**63 - 1] * 5", "[2**63]", "[-1]", "[0, True]")
            )
        return self.sequence(self.numbers(3, 20))

    def prompt(self) -> str:
        """Tokens that several requests begin with."""
        roll = self.random.random()
        if roll < 0.15:
            return self.tokens()
        length = self.random.choice((1, 5, 8, 17, 30, 40, 64))
        common = f"[7] * {self.random.choice((4, 8, 16, 32))} + list(range({length}))"
        return common if roll < 0.8 else f"array('q', {common})"

    def handles(self, batch: str) -> str:
        """Handles of a batch."""
        if self.random.random() < 0.6:
            return f"some({batch}, {self.random.randrange(99)})"
        size = self.random.choice((0, 1, 1, 2, 2, 3))
        drawn = (
            list(range(size)) if self.random.random() < 0.4 else self.random.sample(range(6), size)
        )
        return self.sequence(repr(drawn))

    def counts(self) -> str:
        """A count for all handles, or one for each."""
        return self.count() if self.random.random() < 0.6 else self.sequence(self.numbers(4, 5))

    def hits(self) -> str:
        """What might be blocks of a hit."""
        if self.random.random() < 0.2:
            return self.random.choice(
                ("None", "[]", "KVCacheBlocks(())", "KVCacheBlocks(((),) * 3)", self.ids())
            )
        if self.random.random() < 0.5:
            return f"{self.one('m')}.get_computed_blocks({self.one('r')}).blocks"
        groups = "".join(f"{self.ids()}, " for _ in range(self.random.choice((1, 1, 2, 3, 4))))
        return f"KVCacheBlocks(({groups}))"

    # Outputs.

    def delta_rows(self) -> str:
        """Memory for rows."""
        num = self.random.choice((0, 1, 3, 20, 20))
        if self.random.random() < 0.7:
            return f"rows({num})"
        return self.random.choice(
            (
                f"frozen(rows({num}))", f"rows({num}, 3)", f"rows({num}, 4, 'int64')",
                f"rows({num})[::2]", f"rows({num}, 8)[:, :4]", f"rows({num}).reshape(-1)",
                f"Tensor(rows({num}){self.act()})", f"Tensor(rows({num}){self.act()})",
                "Tensor(None)", "bytearray(64)", "memoryview(bytearray(64)).cast('i', (4, 4))",
                "None", "7", "rows(0, 0)", f"rows({num}, 4, '>i4')", f"rows({num}).T",
            )
        )  # fmt: skip

    def mapping(self) -> str:
        """Memory for the slots of one group."""
        if self.random.random() < 0.7:
            return self.random.choice(("slots(100)", "slots(100)", "slots(3)", "None"))
        return self.random.choice(
            (
                "slots(0)", "frozen(np.zeros(99, 'int64'))", "strided('int64', 99)",
                "np.zeros(99, 'int32')", f"Tensor(np.zeros(99, 'int64'){self.act()})", "[0] * 99",
                f"Moody([0] * 99, 'acts'{self.act()})", "np.zeros(99, '>i8')", "7",
            )
        )  # fmt: skip

    def output(self) -> str:
        """What a step is to write."""
        if self.random.random() < 0.4:
            return "None"
        mappings = "None"
        if self.random.random() < 0.6:
            size = self.random.choice((1, 1, 2, 3, 4))
            mappings = self.random.choice(("[", "("))
            mappings += "".join(f"{self.mapping()}, " for _ in range(size))
            mappings += "]" if mappings[0] == "[" else ")"
        deltas = self.delta_rows() if self.random.random() < 0.7 else "None"
        if self.random.random() < 0.05:
            return self.random.choice(("7", "object()", f"StepOutput(7, {deltas})"))
        return f"StepOutput({deltas}, {mappings})"

    def thing(self) -> str:
        """Anything."""
        kinds = (self.count, self.count, self.ids, self.flag, self.hits, self.delta_rows)
        if self.random.random() < 0.3 and self.has("r"):
            return self.random.choice((self.one("m"), self.one("r"), f"{self.one('r')}.input"))
        return self.random.choice(kinds)()
