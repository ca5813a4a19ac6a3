"""What one admission costs in the core: without rules, with the starter set in force, and beside a lease.

*Kept*: the engine was asked something before that the set can't tell from this. *Asked anew*: it is asked each time, as
by a gateway that keeps nothing. All rows are decided in turn, on a state that stays as it is, and timed by the CPU that
they take: nothing waits here.
"""

import gc
import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from hashlib import sha256
from statistics import median
from time import process_time

import cedarpy

from bench.core import OPERATOR_NUMBER, Case, Core, times_us
from gateway.app import GARBAGE_THRESHOLDS
from gateway.core.intake import SignedRequest
from gateway.core.outcome import Ruling
from gateway.core.records import RuleSet
from gateway.rules.cases import read_cases
from gateway.rules.check import schema
from gateway.rules.engine import Engine
from gateway.rules.evaluate import Rules, read_policies
from gateway.rules.starter import starter_cases, starter_rules
from verifier.rules import SCHEMA, Question, evaluations
from verifier.wire import JsonObject, JsonValue

ROUNDS, CALLS = 200, 500
NAMES = 64
TTL_MS = 3_600_000
NAME = "cedar/0.0.0"
FILES = tuple(f"repo:app/{number:02}.py" for number in range(NAMES))


class Anew:
    """An engine that keeps the parsed set and no answers."""

    name = NAME

    def __init__(self) -> None:
        self._rules = Rules(starter_rules())

    def count(self, text: str) -> int:
        return len(read_policies(text))

    def __call__(self, rule_set: RuleSet, question: Question) -> Ruling:
        found = self._rules.judge(question, is_kept=False)
        return Ruling(found.decision, found.matched, found.obligations, NAME)


def report() -> Iterator[str]:
    """Yield both tables."""
    gc.set_threshold(*GARBAGE_THRESHOLDS)  # as in a gateway
    cases = _cases()
    for case in cases:
        case.check()
    taken = times_us(*((case.core, case.request) for case in cases), rounds=ROUNDS, clock=process_time)
    unpoliced = taken[1]
    yield ""
    yield "| decision | entry | CPU µs | ratio to an unpoliced admission | ratio to a lease |"
    yield "| --- | --- | --: | --: | --: |"
    for case, used in zip(cases, taken, strict=True):
        ratios = f"{used / unpoliced:.2f} | {used / taken[0]:.2f}"
        yield f"| {case.what} | `{case.entry}` | {used:.0f} | {ratios} |"
    yield from _engine()


def _cases() -> list[Case]:
    free, kept, anew = Core(2), Core(2, Engine(NAME)), Core(2, Anew())
    cases = [Case("a lease on an exact name", free, _take(free, 2, ["repo:plain"]), "lease.granted")]
    for what, core in (("no rules", free), ("rules, kept", kept), ("rules, asked anew", anew)):
        one, many = _holder(core, 1, FILES[:1]), _holder(core, 2, FILES[1:])
        if core is not free:
            told: JsonObject = {"rules": starter_rules(), "rulesMode": "enforce", "rulesVersion": 1}
            core.run([core.request(OPERATOR_NUMBER, "rules.load", **told)])
        cases += [Case(f"one name, {what}", core, one(), "admission.allowed")]
        cases += [Case(f"{NAMES - 1} names, {what}", core, many(), "admission.allowed")]
        if core is not free:
            cases += [Case(f"one name over budget, {what}", core, one(cost=10_001), "admission.denied")]
    return cases


def _take(core: Core, agent: int, names: list[JsonValue]) -> SignedRequest:
    return core.request(agent, "lease.acquire", resources=names, ttlMs=TTL_MS)


def _holder(core: Core, agent: int, names: Sequence[str]) -> Callable[..., SignedRequest]:
    """Let an agent take a lease; return what makes its requests for admissions under that."""
    (lease,) = core.run([_take(core, agent, [*names])])
    shown: JsonObject = {"leaseId": lease.text("leaseId"), "fencingToken": lease.number("fencingToken")}
    act: JsonObject = {"operation": "edit", "resources": [*names], "argumentsDigest": sha256(b"bench").hexdigest()}
    return partial(core.request, agent, "coordination.admit", **shown, **act)


def _engine() -> Iterator[str]:
    """Yield what one question about one name takes, put to the engine in this way or that."""
    text = starter_rules()
    rules, policies = Rules(text), cedarpy.PolicySet.from_str(text)
    (case,) = (case for case in read_cases(starter_cases()) if case.name == "a holder writes")
    (one,) = evaluations(case.question)
    entities = json.dumps(one.entities)
    ways: dict[str, Callable[[], object]] = {
        "kept": lambda: rules.judge(case.question),
        "asked anew: the set parsed before (what we do)": lambda: rules.judge(case.question, is_kept=False),
        "and the schema passed too, parsed before": lambda: cedarpy.is_authorized(
            one.request, policies, entities, schema()
        ),
        "and set and schema as texts": lambda: cedarpy.is_authorized(one.request, text, entities, SCHEMA),
    }
    taken: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(CALLS):
        for way, ask in ways.items():
            started_s = process_time()
            ask()
            taken[way].append((process_time() - started_s) * 1e6)
    used = {way: median(times) for way, times in taken.items()}
    yield ""
    yield "| one question about one name | CPU µs | ratio to kept |"
    yield "| --- | --: | --: |"
    for way, us in used.items():
        yield f"| {way} | {us:.0f} | {us / used['kept']:.1f} |"
