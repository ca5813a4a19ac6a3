"""What comes out of the core for one command, and what a decision may know.

Source: docs/protocol.md 6 and 10.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol, TypeAlias

from gateway.core.draft import Draft
from gateway.core.intake import SignedRequest
from gateway.core.parameters import Parameters
from gateway.core.records import RuleSet
from gateway.core.refusal import Refusal
from verifier.entries import full_type
from verifier.rules import Question
from verifier.wire import JsonObject


class Ruling(NamedTuple):
    """What the rules say of one question: the ids that decided, sorted, and what they oblige to.

    `matched` are the permits of an "allow", the forbids of a "deny" (none where nothing permits), and nothing of an
    "error". `engine` is what evaluated them, with its version.
    """

    decision: Literal["allow", "deny", "error"]
    matched: tuple[str, ...]
    obligations: tuple[str, ...]
    engine: str


class Rules(Protocol):
    """Evaluates rule sets. Pure: the same set and question give the same ruling, whenever and wherever."""

    @property
    def name(self) -> str:
        """Return what evaluates, with its version: `cedar/4.12.1`."""

    def count(self, text: str) -> int:
        """Return how many rules there are in a text that the door found valid."""

    def __call__(self, rule_set: RuleSet, question: Question) -> Ruling:
        """Return what a set says. Whatever it raises counts as an error of the rules."""


class Context(NamedTuple):
    """Everything beside records and request: log time, the number the next entry gets, the rules' numbers.

    `anchor_is_known` says whether the gateway ever signed the request's (size, root); only a lookup knows. `genesis` is
    the hash of entry 0 in hex, which statements of the root name. `rules` evaluates rule sets; None where nothing can.
    """

    t_ms: int
    seq: int
    parameters: Parameters
    anchor_is_known: bool = True
    genesis: str = ""
    rules: Rules | None = None


class Decision(NamedTuple):
    """An entry to be written: its full type, its own members (not the common ones), its HTTP status.

    `fault` is the exception behind a `decision.failed`, for the gateway's log alone; it is never written or sent.
    `asked` is the request, with whom it acts for; None for what the gateway itself causes. The entries of a batch's
    commands, as `parts`, follow its header with nothing in between.
    """

    type: str
    members: JsonObject
    status: int
    fault: Exception | None = None
    asked: SignedRequest | None = None
    parts: tuple[Decision, ...] = ()

    @property
    def is_refusal(self) -> bool:
        return self.status >= 400


ActionDecide: TypeAlias = Callable[[Draft, SignedRequest, Context], Decision]


@dataclass(frozen=True, slots=True)
class Recorded:
    """The answer to a command that wrote entry `seq` of this batch, and `count` more of the commands in it."""

    seq: int
    status: int
    count: int = 0
    fault: Exception | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Replay:
    """The answer to a retry: what entry `seq` answered with `status`. That entry may be in this very batch."""

    seq: int
    status: int


@dataclass(frozen=True, slots=True)
class Unreceipted:
    """A refusal that writes nothing. `detail` has further members of the problem, such as `seq` or `nowMs`."""

    refusal: Refusal
    detail: Mapping[str, int]


def granted(entry: str, members: JsonObject, status: int = 200) -> Decision:
    """Return a success of type `entry`, given as `noun.participle`; 202 says that the asker still waits."""
    return Decision(full_type(entry), members, status)


def refused(entry: str, refusal: Refusal, members: JsonObject) -> Decision:
    """Return a receipted refusal of type `entry`, with the row's name, number and status."""
    assert refusal.is_receipted, "a refusal without receipt writes no entry"
    return Decision(full_type(entry), {**members, "error": refusal.name, "number": refusal.number}, refusal.status)
