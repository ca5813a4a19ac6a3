"""What operators set of schemes: by whom, and never under a lease, a ticket or a delay.

Source: docs/protocol.md 5.6, 26.
"""

from __future__ import annotations

from verifier.entries import Leaf, scheme_of
from verifier.replay.schemes import Scheme
from verifier.replay.state import State, Thing
from verifier.replay.things import Faults
from verifier.wire import JsonObject


def set_faults(state: State, leaf: Leaf, asked: JsonObject | None) -> Faults:
    """`scheme.set`: nothing of the scheme lives if anything changes, and what was left open is entry 0's."""
    name, values = leaf.text("name"), _scheme(state, leaf.value)
    if asked is not None and (values.lock_delay_ms, values.max_hold_ms) != _scheme(state, asked)[3:]:
        yield "scheme_wrong", "a duration that the request leaves out is entry 0's (5.6)"
    if is_busy(state, name, leaf.value):
        yield "scheme_busy", "a scheme changed while a lease, a ticket or a delay of it lived (26.3)"
    state.schemes.put(name, values)


def is_busy(state: State, name: str, asked: JsonObject) -> bool:
    """Say whether a scheme that lives would become something else by what is asked."""
    if _scheme(state, asked) == state.schemes.named(name):
        return False
    things: list[Thing] = [*state.lease.values(), *state.ticket.values(), *state.delays_by_end()]
    return any(state.is_live(thing) and name in map(scheme_of, thing.keys) for thing in things)


def _scheme(state: State, asked: JsonObject) -> Scheme:
    delay_ms, hold_ms = asked.get("lockDelayMs"), asked.get("maxHoldMs")
    return Scheme(
        str(asked.get("class")),
        asked.get("isFolding") is True,
        asked.get("isUnicode") is True,
        delay_ms if isinstance(delay_ms, int) else state.numbers["lockDelayMs"],
        hold_ms if isinstance(hold_ms, int) else state.numbers["maxHoldMs"],
    )
