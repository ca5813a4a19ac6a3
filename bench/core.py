"""A ledger of the core alone: records in memory, no store, no signatures of ours, and a clock that stands still.

`build_batch` never writes to the view it decides on, so one request can be decided as often as one likes on the same
state; what a bench wants to keep it runs once more with `run`.
"""

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from bench.load import agent_key
from gateway.actions import ACTIONS
from gateway.client.signing import Draft, new_nonce, sign_request
from gateway.core.append import Batch, Command, Imprint, build_batch
from gateway.core.draft import Head
from gateway.core.intake import RawRequest, SignedRequest, intake
from gateway.core.outcome import ActionDecide, Rules
from gateway.core.parameters import Parameters
from gateway.core.record_keys import OPERATORS_KEY, operator_key
from gateway.core.record_keys import agent_key as record_key
from gateway.core.records import Agent, Counter, Operator
from gateway.ledger.checkpoint import encode_leaf
from gateway.ledger.live import Live
from verifier.entries import ACTION_PATHS, Leaf, parse_leaf
from verifier.wire import JsonValue, encode_base64, encode_canonical

OPERATOR_NUMBER = 1_000_000
OPERATOR = agent_key(OPERATOR_NUMBER).did  # it answers for all of them, and signs rule sets alone
ORIGIN, AUTHORITY = "localhost/bench", "localhost"
NOW_S = 1_800_000_000
GENESIS = bytes(range(32))
ANCHOR = f"{ORIGIN} 1 {encode_base64(GENESIS)}"
AT_ONCE = 256
LIFE_S = 300


class Core:
    """A ledger with `agents` enrolled, numbered from 1; `rules` evaluates the rule set that is loaded into it."""

    def __init__(self, agents: int, rules: Rules | None = None) -> None:
        self._rules = rules
        dids = [agent_key(number).did for number in range(1, agents + 1)]
        self._live = Live((record_key(did), Agent(did, None, 0, None, OPERATOR)) for did in dids)
        self._live.apply([(operator_key(OPERATOR), Operator(OPERATOR), None), (OPERATORS_KEY, Counter(1), None)])
        self._head = Head(1, GENESIS, NOW_S * 1_000, 1, "opening")
        self._numbers = itertools.count()

    def request(self, agent: int, action: str, /, **members: JsonValue) -> SignedRequest:
        """Return a request as the desk hands it on: signed by the agent, read and verified."""
        key = agent_key(agent)
        body = encode_canonical({"ledger": ORIGIN, "actorDid": key.did, **members})
        draft = Draft("POST", AUTHORITY, ACTION_PATHS[action], "", ANCHOR, body, f"bench-{next(self._numbers)}")
        headers = sign_request(draft, key, created_s=NOW_S, nonce=new_nonce(), life_s=LIFE_S)
        raw = RawRequest("POST", AUTHORITY, draft.path, "?", tuple(headers.items()), body)
        return intake(raw, origin=ORIGIN, authorities=frozenset({AUTHORITY}), action=action)

    def decide(self, requests: Sequence[SignedRequest]) -> Batch:
        """Decide requests on the ledger as it stands, and leave it so."""
        commands = [Command(request, _decide(request.action), True) for request in requests]
        return build_batch(
            self._live,
            commands,
            self._head,
            batch_id="bench",
            t_ms=NOW_S * 1_000,
            epoch=1,
            imprint=Imprint(ORIGIN, GENESIS.hex(), "memory"),
            parameters=Parameters(),
            encode=encode_leaf,
            rules=self._rules,
        )

    def run(self, requests: Sequence[SignedRequest]) -> list[Leaf]:
        """Decide requests and keep what they change; return the entries."""
        leaves: list[Leaf] = []
        for first in range(0, len(requests), AT_ONCE):
            batch = self.decide(requests[first : first + AT_ONCE])
            assert batch.head is not None
            self._live.apply(batch.changes)
            self._head = batch.head
            leaves += map(parse_leaf, batch.leaves)
        return leaves


def _decide(action: str) -> ActionDecide:
    decide = ACTIONS[action].decide
    assert decide is not None, "an action that is a decision"
    return decide


@dataclass(frozen=True, slots=True)
class Case:
    """One row: on which ledger which request is decided, and which entry it must become."""

    what: str
    core: Core
    request: SignedRequest
    entry: str

    def check(self) -> None:
        """Make sure that the row measures what it says."""
        (leaf,) = (
            leaf
            for leaf in map(parse_leaf, self.core.decide([self.request]).leaves)
            if leaf.actor == self.request.actor
        )
        if leaf.type.split("/")[1] != self.entry:
            raise SystemExit(f"bench: {self.what} became {leaf.type}: {leaf.value.get('error')}")


def times_us(
    *asked: tuple[Core, SignedRequest], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Return the median µs of deciding each request, one after the other in each round: drift meets all alike.

    Each is decided once before it is timed, so that no row pays for the caches that a large one before it has emptied.
    """
    taken: list[list[float]] = [[] for _ in asked]
    for _ in range(rounds):
        for times, (core, request) in zip(taken, asked, strict=True):
            core.decide([request])
            started_s = clock()
            core.decide([request])
            times.append((clock() - started_s) * 1e6)
    return [median(times) for times in taken]
