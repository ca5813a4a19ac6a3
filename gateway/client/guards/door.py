"""What happens between a request and a guarded handler, whatever server it is: nothing here knows aiohttp or ASGI.

In two steps, so that a stranger's body is not read: `knock` judges the head (signature, receipt, who), `passing` the
body and the act, and uses the admission up. One guarded handler runs at a time over all tasks and processes that share
the guard's memory, because a check that is not one step with its write stops no stale writer; what must not wait for
each other has guards of its own.
Source: docs/protocol.md 41.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Generic, TypeVar

from gateway.client.admission_guard import AdmissionGuard, Deed, Judged
from gateway.client.errors import Fenced
from gateway.client.fence import FenceGuard
from gateway.client.fence_memory import Use
from gateway.client.guards.carrier import HEADER, receipt_in_lines
from gateway.client.guards.request import Call, Signed, arguments_of, check_body, check_head
from gateway.client.receipts import VerifiedReceipt
from verifier.entries import MODES, SKEW_MS
from verifier.wire import Malformed

NO_WEBSOCKET = "what is said over a websocket can't be admitted one by one"
BODY_BYTES_MAX = 1_048_576
R = TypeVar("R")
BODY_MS, WAIT_MS, RUN_MS = 10_000, 10_000, 30_000


@dataclass(frozen=True, slots=True)
class Guarded:
    """What a request is about to do. `resources`: one name, several, or what finds them in the body.

    `operation` is compared by an AdmissionGuard only. What finds names in a body raises ValueError for a bad one.
    """

    operation: str
    resources: str | Sequence[str] | Callable[[bytes], Sequence[str]]
    mode: str = "write"

    def act(self, body: bytes) -> Deed:
        """Return it with its names."""
        found = self.resources(body) if callable(self.resources) else self.resources
        return Deed(self.operation, (found,) if isinstance(found, str) else tuple(found), self.mode)


# Of the head of a request: what it is about to do, or None when anybody may ask for it.
Describe = Callable[[Call], Guarded | None]


@dataclass(frozen=True, slots=True)
class Knock:
    """A head that was let in."""

    wanted: Guarded
    signed: Signed
    verified: VerifiedReceipt


@dataclass(frozen=True, slots=True)
class Passed:
    """What a guarded handler may know: the verified receipt, and the act as it was compared."""

    receipt: VerifiedReceipt
    act: Deed

    @property
    def actor(self) -> str:
        """The key that signed the request and that the receipt is of."""
        return self.receipt.leaf.actor


class Run(Generic[R]):
    """Runs a handler, and tells what it raised by itself from what the door did."""

    def __init__(self, handler: Callable[..., Awaitable[R]]) -> None:
        self._handler = handler
        self._raised: BaseException | None = None

    async def __call__(self, *arguments: Any) -> R:
        try:
            return await self._handler(*arguments)
        except BaseException as error:
            self._raised = error
            raise

    def is_own(self, error: BaseException) -> bool:
        """Say whether this came out of the handler: nobody takes that for a refusal."""
        return error is self._raised


class Door:
    """A guard, and which requests it is asked about. `authorities` are the host names that callers sign for.

    `describe` judges the head alone. A body is at most `body_bytes_max` and has `body_ms` to arrive; a call waits
    `wait_ms` for its turn, and its handler is cancelled after `run_ms`.
    """

    def __init__(
        self,
        guard: AdmissionGuard | FenceGuard,
        describe: Describe,
        authorities: Collection[str],
        *,
        body_bytes_max: int = BODY_BYTES_MAX,
        body_ms: int = BODY_MS,
        wait_ms: int = WAIT_MS,
        run_ms: int = RUN_MS,
    ) -> None:
        self.guard = guard
        self.describe = describe
        self.body_bytes_max, self.body_ms = body_bytes_max, body_ms
        self._authorities = frozenset(authorities)
        self._wait_ms, self._run_ms = wait_ms, run_ms

    def knock(self, call: Call) -> Knock | None:
        """Return what a head asks for once it has proven who asks, or None for one that is not guarded; Fenced."""
        wanted = self.describe(call)
        if wanted is None:
            return None
        if call.values("upgrade"):
            raise Fenced(NO_WEBSOCKET, "websocket_refused")
        signed = check_head(call, authorities=self._authorities, origin=self.guard.origin, now_ms=self.guard.wall_ms())
        self._check_length(call)
        verified = self.guard.opened(receipt_in_lines(call.values(HEADER)))
        if verified.leaf.actor != signed.keyid:
            raise Fenced(f"entry {verified.seq} is of another key than signed the request", "not_proven")
        return Knock(wanted, signed, verified)

    @asynccontextmanager
    async def passing(self, knock: Knock, body: bytes) -> AsyncIterator[Passed]:
        """Judge the whole, use it up, and hold the turn while the handler runs; Fenced, and it doesn't."""
        check_body(knock.signed, body)
        try:
            act = knock.wanted.act(body)
            judged = self._judged(knock, act, body)
        except ValueError as error:  # Malformed is one
            raise Fenced(str(error), "act_malformed") from error
        memory = self.guard.memory
        async with memory.admitted_in_turn(judged.permits, judged.use, self.guard.wall_ms, self._wait_ms):
            async with self._in_time():
                yield Passed(knock.verified, act)

    def _judged(self, knock: Knock, act: Deed, body: bytes) -> Judged:
        """Of a lease the request itself is what happens once: who sees it go by could else send it again."""
        call, signed, guard = knock.signed.call, knock.signed, self.guard
        if act.mode not in MODES:
            raise Malformed(f"a mode is one of {', '.join(MODES)}")
        if isinstance(guard, AdmissionGuard):
            arguments = arguments_of(call.method, call.path, call.query, body)
            return guard.judge(knock.verified, act, sha256(arguments).hexdigest())
        use = Use(
            f"the request {signed.nonce} of {signed.keyid}", signed.expires_ms + SKEW_MS, knock.verified.leaf.time_ms
        )
        return Judged(guard.judge(knock.verified, act.resources, act.mode), use)

    @asynccontextmanager
    async def _in_time(self) -> AsyncIterator[None]:
        limit = asyncio.timeout(self._run_ms / 1_000)
        try:
            async with limit:
                yield
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise Fenced(f"it did not end within {self._run_ms} ms", "too_slow") from error

    def check_size(self, size: int) -> None:
        """Fenced when so many bytes of a body are too many."""
        if size > self.body_bytes_max:
            raise Fenced(f"a guarded body has at most {self.body_bytes_max} bytes", "body_too_large")

    def _check_length(self, call: Call) -> None:
        """Refuse by its stated length a body that is not going to be read."""
        for value in call.values("content-length"):
            if value.isascii() and value.isdigit() and len(value) < 20:
                self.check_size(int(value))
