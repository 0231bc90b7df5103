"""Run the contracts of one file with CrossHair, two at a time, and count the answers.

CrossHair calls a function with unknown arguments, once for each path through it, and asks z3 for
arguments that lead there. A contract is *confirmed* when all paths were taken and returned
true, *refuted* when one did not, and *not confirmed* when there were too many. The first is no
proof: it relies on CrossHair's models of Python's types. So each contract is shown to be able to
fail: with each of its mistakes planted in the code it must be refuted, and every counterexample is
called again, without CrossHair and with kvfast's own arrays, and must fail there as well.

Limits are numbers of paths, so that a busy machine changes no answer.
"""

from __future__ import annotations

import ast
import importlib
import multiprocessing
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum
from importlib.metadata import version

from crosshair.condition_parser import Pep316Parser
from crosshair.core_and_libs import analyze_function, run_checkables
from crosshair.fnutil import FunctionInfo
from crosshair.options import AnalysisKind, AnalysisOptionSet
from crosshair.statespace import AnalysisMessage, MessageType

from proofs.code._planted import Planted
from proofs.code.contracts._storage import lists

CROSSHAIR = "0.0.112"
"""The version with which the contracts were confirmed; another one may know other models."""

PACKAGE = "proofs.code.contracts"
NUM_PROCESSES = 2
MOST_SECONDS = 300.0
"""Of processor time for one contract. Only there to end; none takes a tenth of it."""


class Outcome(Enum):
    """CrossHair's answer."""

    CONFIRMED = "confirmed"
    BOUNDED = "not confirmed, no counterexample"
    REFUTED = "refuted"
    VACUOUS = "no argument meets the preconditions"
    UNUSABLE = "not a contract"


OUTCOMES = {
    MessageType.CONFIRMED: Outcome.CONFIRMED,
    MessageType.CANNOT_CONFIRM: Outcome.BOUNDED,
    MessageType.PRE_UNSAT: Outcome.VACUOUS,
    MessageType.POST_FAIL: Outcome.REFUTED,
    MessageType.POST_ERR: Outcome.REFUTED,
    MessageType.EXEC_ERR: Outcome.REFUTED,
}


@dataclass(frozen=True)
class Contract:
    """A function that must return true for all arguments that its docstring allows.

    At most `num_paths` paths are taken.
    """

    function: Callable[..., object]
    mistakes: tuple[Planted, ...] = ()
    num_paths: int = 1000

    @property
    def name(self) -> str:
        """Name of its function."""
        return self.function.__name__


@dataclass(frozen=True)
class Answer:
    """The outcome of a contract, or of one of its mistakes.

    `detail`: the counterexamples, or what was wrong with them.
    """

    contract: str
    mistake: str | None
    outcome: Outcome
    expected: Outcome
    is_replayed: bool
    num_paths: int
    detail: str

    @property
    def is_expected(self) -> bool:
        """Whether the outcome is expected, and a counterexample holds when replayed."""
        return self.outcome is self.expected and self.is_replayed

    def __str__(self) -> str:
        name = self.contract if self.mistake is None else f"{self.contract}, {self.mistake}"
        wrong = "" if self.is_expected else f", expected: {self.expected.value}"
        if not self.is_replayed:
            wrong += ", but no counterexample without CrossHair"
        shown = f" ({self.detail})" if self.detail and (wrong or self.mistake is None) else ""
        return f"{name}: {self.outcome.value}{wrong}{shown}, {self.num_paths} paths"


def ask(contract: Contract, mistake: Planted | None = None) -> Answer:
    """Run CrossHair in this process, and return its answer."""
    stats: Counter[str] = Counter()
    options = AnalysisOptionSet(
        analysis_kind=[AnalysisKind.PEP316],
        max_iterations=contract.num_paths,
        max_uninteresting_iterations=0,
        per_condition_timeout=MOST_SECONDS,
        per_path_timeout=MOST_SECONDS,
        report_all=True,
        stats=stats,
    )
    with ExitStack() as stack:
        if mistake is not None:
            stack.enter_context(mistake.done())
        with lists():
            outcome, cases, detail = _checked(contract, options)
        is_replayed = all(fails(contract, case) for case in cases)
    return Answer(
        contract=contract.name,
        mistake=None if mistake is None else str(mistake),
        outcome=outcome,
        expected=Outcome.CONFIRMED if mistake is None else Outcome.REFUTED,
        is_replayed=is_replayed,
        num_paths=stats["num_paths"],
        detail=detail,
    )


Case = Mapping[str, object]
"""The arguments of a counterexample."""


def _checked(contract: Contract, options: AnalysisOptionSet) -> tuple[Outcome, list[Case], str]:
    messages = run_checkables(analyze_function(contract.function, options))
    if len(messages) != 1 or messages[0].state not in OUTCOMES:
        return Outcome.UNUSABLE, [], "; ".join(each.message for each in messages)
    message = messages[0]
    outcome = OUTCOMES[message.state]
    if outcome is not Outcome.REFUTED:
        return outcome, [], ""
    return outcome, [case_of(message, contract.function)], message.message


def case_of(message: AnalysisMessage, function: Callable[..., object]) -> Case:
    """Parse the arguments in `false when calling f(1, (2, 3)) (which returns False)`."""
    text = message.message.split("when calling ", 1)[1].split(" (which ", 1)[0]
    call = ast.parse(text, mode="eval").body
    assert isinstance(call, ast.Call)
    names = function.__code__.co_varnames
    case = {name: ast.literal_eval(each) for name, each in zip(names, call.args, strict=False)}
    case |= {each.arg or "": ast.literal_eval(each.value) for each in call.keywords}
    return case


def fails(contract: Contract, case: Case) -> bool:
    """Check whether a plain call with these arguments breaks the contract."""
    return meets(contract, case) and result_of(contract.function, case) != (True, "")


def meets(contract: Contract, case: Case) -> bool:
    """Check whether arguments meet the preconditions."""
    conditions = Pep316Parser().get_fn_conditions(FunctionInfo.from_fn(contract.function))
    assert conditions is not None
    return all(each.evaluate is not None and each.evaluate(dict(case)) for each in conditions.pre)


def result_of(function: Callable[..., object], case: Case) -> tuple[object, str]:
    """Return the call's result and "", or None and the error."""
    try:
        return function(**case), ""
    except Exception as error:
        return None, repr(error)


def ask_named(subject: str, name: str, mistake: str | None) -> Answer:
    """Run CrossHair in a process that gets the contract by name."""
    contracts: Sequence[Contract] = importlib.import_module(subject).CONTRACTS
    contract = next(each for each in contracts if each.name == name)
    planted = next((each for each in contract.mistakes if str(each) == mistake), None)
    return ask(contract, planted)


def version_problem() -> str | None:
    """Return how to install the expected CrossHair, or None if it is there."""
    installed = version("crosshair-tool")
    if installed == CROSSHAIR:
        return None
    return (
        f"crosshair-tool {CROSSHAIR} is needed, {installed} is installed: "
        f"pip install crosshair-tool=={CROSSHAIR}"
    )


def main(subject: str) -> int:
    """Check the contracts of a file of this folder; return 0 if each answer is as expected."""
    problem = version_problem()
    if problem is not None:
        print(problem)
        return 2
    module = f"{PACKAGE}.{subject}"
    contracts: Sequence[Contract] = importlib.import_module(module).CONTRACTS
    tasks = [
        (module, each.name, mistake)
        for each in contracts
        for mistake in (None, *map(str, each.mistakes))
    ]
    # Not forked: what another thread holds would be held for ever.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(NUM_PROCESSES, mp_context=context) as executor:
        answers = list(executor.map(ask_named, *zip(*tasks, strict=True)))
    return report(subject, answers)


def report(subject: str, answers: Sequence[Answer]) -> int:
    """Print a line for each contract and for what is unexpected, and the count."""
    for answer in answers:
        if answer.mistake is None or not answer.is_expected:
            print(answer)
    failed = sum(not answer.is_expected for answer in answers)
    print(f"{subject}: {len(answers) - failed} passed, {failed} failed")
    return 1 if failed else 0
