"""Every error of the contract, in one tree.

A refusal for lack of space is a value (`None` or `False`), never an exception (KV-ERR-1). Every
illegal call raises one of the errors below, which carries the offending values, and leaves the
state exactly as it was (KV-ERR-2). Errors that a caller would catch as `ValueError`, `KeyError` or
`LookupError` are also that::

    KVSpecError
    ├── InvalidArgumentError (ValueError)      a value outside its domain
    │   ├── ConfigError                        … in a spec or a configuration
    │   │   ├── PageSizeError (NotImplementedError)  pages that cannot have one size
    │   │   └── CacheMemoryError               memory that cannot hold one request
    │   ├── StaleHitError                      hit blocks that no longer hold what they claim
    │   └── BlockReleaseError                  a reference released that is not held
    ├── UnknownBlockError (KeyError)           a block id outside 0 … num_blocks - 1
    ├── UnsupportedError (NotImplementedError) a capability the implementation lacks
    ├── UnknownImplementationError (LookupError)
    ├── BusyError (RuntimeError)               a call while another one is under way
    ├── SpoiltError (RuntimeError)             a manager that broke off in the middle of a change
    ├── InvariantViolation                     the implementation, not the caller, is wrong
    │   └── MonitorViolation                   … in an engine's own run (`kvcheck.monitor`)
    ├── RemoteError                            an implementation in a child process failed as such
    └── FormatError (ValueError)               a malformed file: record, trace, profile
        └── SavedStateError                    … of a manager's state
"""

from __future__ import annotations

from pathlib import Path

SHOWN_CHARACTERS = 1_000
"""The most characters of a value in an error's message; the error itself carries all of it."""


def cut(value: object, limit: int = SHOWN_CHARACTERS) -> str:
    """Return the value's repr, cut so that an error stays readable.

    A value without a repr, such as an int of thousands of digits, is shown by its type.
    """
    try:
        text = repr(value)
    except Exception:  # whatever a class of the caller's own raises
        is_int = issubclass(type(value), int)
        size = f" of {int.bit_length(value)} bits" if is_int else ""  # type: ignore[arg-type]  # an int
        return f"<{type(value).__name__}{size}>"
    return text if len(text) <= limit else text[:limit] + "…"


class KVSpecError(Exception):
    """Base of all errors of the contract."""


class InvalidArgumentError(KVSpecError, ValueError):
    """A value outside its domain.

    `field` names the argument, `value` is the one given, `allowed` says in words what is legal.
    """

    def __init__(self, field: str, value: object, allowed: str) -> None:
        super().__init__(f"{field} = {cut(value)}: must be {allowed}")
        self.field = field
        self.value = value
        self.allowed = allowed


class ConfigError(InvalidArgumentError):
    """A spec or configuration that cannot be served; `field` names the offending member."""


class PageSizeError(ConfigError, NotImplementedError):
    """A layer whose page cannot be made as large as the largest page (KV-PLAN-4).

    `layer` is its name, `value` its page size in bytes, `wanted` the size it should have.
    """

    def __init__(self, layer: str, page_size_bytes: int, wanted: int, why: str) -> None:
        super().__init__(
            f"page_size_bytes of layer {layer}",
            page_size_bytes,
            f"equal to the largest page, {wanted} bytes, or made so: {why}",
        )
        self.layer = layer
        self.wanted = wanted


class CacheMemoryError(ConfigError):
    """Memory that cannot hold one request of full length (KV-PLAN-9).

    `needed_bytes` would be enough; `longest_tokens` is the longest length that fits, 0 if none.
    """

    def __init__(
        self, max_model_len_tokens: int, needed_bytes: int, available_bytes: int, longest: int
    ) -> None:
        # Whole hundredths: the quotient of large ints may be no double.
        needed_gib = needed_bytes * 100 // 2**30
        allowed = f"at least {needed_bytes} bytes ({needed_gib // 100}.{needed_gib % 100:02} GiB;"
        allowed += f" there are {available_bytes / 2**30:.2f} GiB)"
        allowed += f" for one request of {max_model_len_tokens} tokens"
        if longest:
            allowed += f"; the longest request that fits has {longest} tokens"
        super().__init__("available_memory_bytes", available_bytes, allowed)
        self.max_model_len_tokens = max_model_len_tokens
        self.needed_bytes = needed_bytes
        self.available_bytes = available_bytes
        self.longest_tokens = longest


class StaleHitError(InvalidArgumentError):
    """Hit blocks handed to `allocate_slots` that do not hold what the request's hashes claim.

    Raised when a block was evicted or reused between the look-up and the allocation, or when the
    ids never came from a look-up (KV-MGR-8).
    """

    def __init__(self, group: int, index: int, block_id: int) -> None:
        super().__init__(
            f"new_computed_blocks[{group}][{index}]",
            block_id,
            "a block that carries the hash of that part of the request; look the request up again",
        )
        self.group = group
        self.index = index
        self.block_id = block_id


class BlockReleaseError(InvalidArgumentError):
    """A block released more often than it was popped and held (KV-POOL-9, KV-POOL-19)."""

    def __init__(self, block_id: int, released: int, held: int) -> None:
        super().__init__(
            "block_ids",
            block_id,
            f"released at most {held} times here (popped or held, not yet back), not {released}",
        )
        self.block_id = block_id
        self.released = released
        self.held = held


class UnknownBlockError(KVSpecError, KeyError):
    """A block id outside 0 … num_blocks - 1."""

    def __init__(self, block_id: object, num_blocks: int) -> None:
        super().__init__(f"block id {cut(block_id)}: must be an int in 0 … {num_blocks - 1}")
        self.block_id = block_id
        self.num_blocks = num_blocks

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would show the repr of the sentence


class UnsupportedError(KVSpecError, NotImplementedError):
    """The implementation lacks a capability that the call or the configuration needs."""

    def __init__(self, capability: str, implementation: str) -> None:
        super().__init__(f"{implementation} does not support {capability}")
        self.capability = capability
        self.implementation = implementation


class UnknownImplementationError(KVSpecError, LookupError):
    """No implementation of that name is installed."""

    def __init__(self, name: str, known: tuple[str, ...], reason: str = "") -> None:
        listed = ", ".join(known) or "none"
        super().__init__(
            f"unknown implementation {name!r}{': ' + reason if reason else ''}"
            f" (installed: {listed}; or give package.module:factory or cmd:PROGRAM ARGS…)"
        )
        self.name = name
        self.known = known
        self.reason = reason


class BusyError(KVSpecError, RuntimeError):
    """A call during another one, nested or in another thread (KV-ERR-7).

    `thing` is what both want: "manager", with all that lies over it, or "request", whose id `name`
    is; None for a manager.
    """

    def __init__(self, thing: str, name: str | None) -> None:
        of_name = "" if name is None else f" {name!r}"
        super().__init__(f"{thing}{of_name}: another call is using it; one at a time")
        self.thing = thing
        self.name = name


class SpoiltError(KVSpecError, RuntimeError):
    """An exception ended an earlier call in the middle of a change (KV-ERR-8): make a new manager.

    `cause` is the name of that exception's type, such as MemoryError.
    """

    def __init__(self, cause: str) -> None:
        super().__init__(f"the manager is spoilt: {cause} ended a call in the middle of a change")
        self.cause = cause


class InvariantViolation(KVSpecError):  # noqa: N818 (it says what happened; no caller erred)
    """An invariant of the contract does not hold: the implementation is wrong, not its caller.

    `invariant` is the name in `kvspec.invariants`, `rule` its rule id, `detail` the first offence
    in words, `state` a readable dump of the snapshot.
    """

    def __init__(self, invariant: str, rule: str, detail: str, state: str = "") -> None:
        super().__init__(f"{invariant} ({rule}): {detail}" + (f"\n{state}" if state else ""))
        self.invariant = invariant
        self.rule = rule
        self.detail = detail
        self.state = state


class MonitorViolation(InvariantViolation):
    """`kvcheck.monitor` found that the manager inside it broke a rule.

    `call` is the operation after which it was found. `record` is the file that reproduces it, or
    None; `hint` then says why, and otherwise what to do with the file.
    """

    def __init__(
        self, found: InvariantViolation, call: str, record: Path | None, hint: str
    ) -> None:
        super().__init__(found.invariant, found.rule, f"{found.detail}, seen after {call}; {hint}")
        self.detail = found.detail
        self.state = found.state
        self.call = call
        self.record = record
        self.hint = hint


class RemoteError(KVSpecError):
    """An implementation in a child process violated the protocol.

    It died, hung, or sent something that is not a valid reply. `command` started it, `last` is the
    last message sent, `problem` describes the violation, `stderr` is the end of its standard error.
    """

    def __init__(self, command: str, last: str, problem: str, stderr: str = "") -> None:
        said = f"; it said on stderr: {stderr!r}" if stderr else ""
        super().__init__(f"{command}: {problem} (last message: {last}){said}")
        self.command = command
        self.last = last
        self.problem = problem
        self.stderr = stderr

    @property
    def is_of_protocol(self) -> bool:
        """Whether a reply was invalid, or a message was rejected as invalid."""
        return self.problem.startswith(("answered nonsense", "ProtocolError"))


class FormatError(KVSpecError, ValueError):
    """A file that does not follow its format; names the file, the line and the field."""

    def __init__(self, file: str, line: int | None, field: str | None, problem: str) -> None:
        where = file + (f", line {line}" if line is not None else "")
        where += f", field {cut(field)}" if field is not None else ""
        said = problem if len(problem) <= SHOWN_CHARACTERS else problem[:SHOWN_CHARACTERS] + "…"
        super().__init__(f"{where}: {said}")
        self.file = file
        self.line = line
        self.field = field
        self.problem = problem


class SavedStateError(FormatError):
    """A file that cannot be loaded as a state (`kvspec.saved`).

    `reason`: "no state", "version", "cut off", "damaged" or "configuration". `advice` says what to
    do next.
    """

    def __init__(self, file: str, reason: str, problem: str, advice: str) -> None:
        super().__init__(file, None, None, f"{problem}; {advice}")
        self.reason = reason
        self.advice = advice
