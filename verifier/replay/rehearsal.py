"""A batch that was refused as a whole: its commands are carried out once more, up to the one that failed, and undone.

Only what the commands of one actor touch is put back: its leases, what they count for, its trust and its last wait. The
queue is not looked at meanwhile, so nothing else moves.
Source: docs/protocol.md 31.4.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from verifier.entries import BY_RULES, Leaf, body_value, command_body, full_type, resources_of, rows_of
from verifier.replay.admissions import Admission, counted, question
from verifier.replay.decide import Refused, acquire, lease_ask
from verifier.replay.handover import lease_seq
from verifier.replay.judged import Judged
from verifier.replay.refusals import TOLD, told_faults
from verifier.replay.rules import batch_claims
from verifier.replay.state import State
from verifier.replay.things import Ask, Faults, Lease
from verifier.replay.wanted import wanted_by
from verifier.wire import JsonObject

_REFUSALS = {
    "lease.acquire": full_type("lease.refused"),
    "lease.renew": full_type("renewal.refused"),
    "lease.release": full_type("release.refused"),
    "coordination.admit": full_type("admission.denied"),
}
_FILLED = ("leaseId", "ttlMs", "mode", "wait", "operation", "argumentsDigest", "cost", "fencingToken")


class Command(NamedTuple):
    """One command as an entry that asks for it; a refusal that repeats all of its body."""

    action: str
    leaf: Leaf
    entry: Judged


def batch_refused_faults(state: State, leaf: Leaf, entry: Judged) -> Faults:
    """`batch.refused`: the commands before `index` succeed one after the other, and that one is refused like this."""
    if entry.asked is None or leaf.text("error") == "decision_failed":  # no body to be read; nobody can tell
        return
    commands = _commands(leaf, entry, entry.asked)
    stage, token = _Stage(state, leaf), state.token
    try:
        for command in commands[: leaf.number("index")]:
            wanted = _wanted(state, command, "")
            if isinstance(wanted, Refused):
                yield "refusal_wrong", f"the entries before call for {wanted.error} of an earlier command (31.4)"
                return
            stage.play(command)
        if leaf.number("index") < len(commands):
            failed = commands[leaf.number("index")]
            told = {name: leaf.value[name] for name in TOLD if name in leaf.value}
            said = failed.leaf._replace(value={**failed.leaf.value, **told})
            yield from told_faults(state, said, _undone(_wanted(state, failed, leaf.text("error")), leaf.seq, token))
    finally:
        stage.undo()


def _wanted(state: State, command: Command, error: str) -> object:
    """Return what a command calls for; `error` is what the entry says, which for rules is all that it tells of them."""
    wanted = wanted_by(state, command.leaf, command.entry)
    if not isinstance(wanted, Admission):
        return wanted
    is_by_rules = error in BY_RULES and state.rule_set is not None and state.rule_set.mode == "enforce"
    batch_claims(state, question(command.leaf, wanted), error if is_by_rules else "")
    return Refused(error) if is_by_rules else wanted


def _undone(wanted: object, seq: int, token: int) -> object:
    """Return what is called for: what a command of the batch itself ended or acquired is undone, and not told. `token`
    is the last one before the batch."""
    if not isinstance(wanted, Refused):
        return wanted
    stands = {"endedSeq": range(seq), "currentToken": range(token + 1)}
    told = {name: told for name, told in wanted.told.items() if name not in stands or told in stands[name]}
    return wanted._replace(told=told)


def _commands(leaf: Leaf, entry: Judged, body: JsonObject) -> list[Command]:
    """Return the commands, each with the number that its own entry would have had."""
    return [_command(leaf, entry, body, index) for index in range(len(rows_of(body["commands"])))]


def _command(leaf: Leaf, entry: Judged, body: JsonObject, index: int) -> Command:
    asked, action = command_body(body, index), str(rows_of(body["commands"])[index]["action"])
    names = resources_of(asked)
    named: JsonObject = {"resources": list(names)} if names else {}
    filled = {name: body_value(action, asked, name) for name in _FILLED} | {"custody": leaf.value.get("custody")}
    value: JsonObject = {**named, **{name: member for name, member in filled.items() if member is not None}}
    told = leaf._replace(value={**value, "error": ""}, type=_REFUSALS[action], seq=leaf.seq + 1 + index)
    return Command(action, told, entry._replace(given=entry.given[index:][:1]))


class _Stage:
    """Plays what commands do, and keeps how to take each step back."""

    def __init__(self, state: State, leaf: Leaf) -> None:
        self._state = state
        principal, actor = leaf.principal, leaf.actor
        edge, mark, trust = state.edges.get(actor), state.mark(), state.trust.recall(principal)
        self._steps: list[Callable[[], None]] = [
            lambda: state.reset(mark),
            lambda: state.trust.put_back(principal, trust),
        ]
        if edge is not None:
            self._steps.append(lambda: state.edges.update({actor: edge}))

    def undo(self) -> None:
        while self._steps:
            self._steps.pop()()

    def play(self, command: Command) -> None:
        """Carry out a command that nothing refuses."""
        state, leaf = self._state, command.leaf
        match command.action:
            case "lease.acquire":
                ask = state.ask(leaf.actor, tuple(resources_of(leaf.value)), leaf.text("mode"))
                found = acquire(state, ask)
                if isinstance(found, Lease):
                    self._prolong(found, leaf)
                else:
                    self._begin(leaf, ask, leaf.time_ms + state.schemes.max_hold_ms(ask.names))
            case "lease.renew":
                self._renew(state.lease[lease_seq(leaf)], leaf)
            case "coordination.admit":
                self._admit(command)
            case _:
                self._release(leaf, command.entry.created_s)

    def _admit(self, command: Command) -> None:
        """Count an admission, and burn the approvals that it uses."""
        state, leaf, given = self._state, command.leaf, [one for row in command.entry.given for one in row]
        known = state.usage.recall(counted(leaf))
        self._steps.append(lambda: state.usage.put_back(known))
        state.usage.count(counted(leaf), leaf.number("cost"), leaf.time_ms)
        for one in given:
            state.burnt.burn(one)
            self._steps.append(partial(state.burnt.take_back, one))

    def _renew(self, lease: Lease, leaf: Leaf) -> None:
        mode = leaf.text("mode") or lease.mode
        if mode == lease.mode:
            self._prolong(lease, leaf)
        else:
            self._end(lease, "changed", leaf)
            self._begin(leaf, lease_ask(lease, mode), lease.hold_until_ms)

    def _release(self, leaf: Leaf, created_s: int) -> None:
        """End the lease that is meant; one that was released before stays so."""
        state = self._state
        if "leaseId" in leaf.value:
            lease = state.lease.get(lease_seq(leaf))
        else:
            lease = state.meant(state.ask(leaf.actor, tuple(resources_of(leaf.value)), "write"), created_s)
        if lease is not None:
            state.trust.gain(lease.principal, leaf.time_ms - lease.granted_at_ms, leaf.time_ms, leaf.seq)
            self._end(lease, "released", leaf)
            state.edges.pop(lease.actor, None)

    def _prolong(self, lease: Lease, leaf: Leaf) -> None:
        before_ms = lease.expires_at_ms

        def shorten() -> None:
            lease.expires_at_ms = before_ms

        lease.expires_at_ms = max(before_ms, leaf.time_ms + leaf.number("ttlMs"))
        self._steps.append(shorten)

    def _begin(self, leaf: Leaf, ask: Ask, hold_until_ms: int) -> None:
        state, end_ms = self._state, leaf.time_ms + leaf.number("ttlMs")
        token = max(state.token + 1, leaf.time_ms * 1000)
        who = leaf.actor, leaf.principal
        lease = Lease(
            leaf.seq, *who, ask.names, ask.keys, ask.mode, token, leaf.time_ms, end_ms, hold_until_ms, "", end_ms
        )
        counts = state.stampede.rows(lease.principal, lease.names)
        self._steps.append(lambda: state.stampede.put_back(counts))
        state.begin(lease)
        self._steps.append(lambda: state.displace(lease))

    def _end(self, lease: Lease, how: str, leaf: Leaf) -> None:
        state = self._state
        state.end(lease, how, leaf.seq)

        def revive() -> None:
            state.place(lease)
            state.endings.take_back(f"L{lease.seq}")

        self._steps.append(revive)
