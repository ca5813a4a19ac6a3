"""Lies about asks for approval: who may be asked, who answered how, when one was over, and who waits for whose word."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from unittest.mock import PropertyMock, patch

from gateway.core import asking as core
from gateway.core.deadlock import NO_CYCLE
from gateway.core.records import Pending
from tests.core.requests import (
    NOW_MS,
    Ask,
    acquire,
    add_operator,
    approved,
    decline,
    did_of,
    give,
    key_of,
    plead,
    withdraw,
)
from tests.lies.kit import House, Lie, Telling
from verifier.approval import action_digest_of
from verifier.entries import parse_leaf

ONE, TWO = "repo:a", "repo:b"


# --- the honest ledgers ---------------------------------------------------------------------------------------------


def word(house: House, by: str, ask_id: str, **changes: Any) -> dict[str, Any]:
    """Return the statement that an ask waits for."""
    asked = json.loads(house.leaves[int(ask_id[1:])])
    one = Ask("", key_of("A"), asked["request"]["body"].encode(), "")
    return approved(by, one, house.imprint.genesis, at_ms=house.t_ms, **changes)


def asked(*of: str, **members: Any) -> House:
    """A holds something and asks X, and perhaps others, to approve what it wants to do."""
    house = House()
    house.say(add_operator("op", "op3"))
    house.hold("A", ONE)
    house.say(plead("A", ONE, of=of or ("X",), **members))
    return house


def ask_of(house: House) -> str:
    """Return the id of the last ask."""
    return [f"A{n}" for n, leaf in enumerate(house.leaves) if b"/approval.asked/" in leaf][-1]


def waiting() -> House:
    """A asks X."""
    return asked()


def wide() -> House:
    """A asks X and op3, either of whom is enough; X stands in line for what A holds."""
    house = asked("X", "op3")
    house.line("X", ONE)
    return house


def joint() -> House:
    """A asks X and op3, and needs both; X gives its word."""
    house = asked("X", "op3", quorum=2)
    house.say(give("X", ask_of(house), word(house, "X", ask_of(house))))
    return house


def granted() -> House:
    """A asks X or op3, and X gives its word; op3 comes late."""
    house = asked("X", "op3")
    house.say(give("X", ask_of(house), word(house, "X", ask_of(house))))
    house.say(give("op3", ask_of(house), word(house, "op3", ask_of(house))))
    return house


def declined() -> House:
    """A asks X and op3, and needs both; X declines."""
    house = asked("X", "op3", quorum=2)
    house.say(decline("X", ask_of(house), reason="not-today"))
    return house


def doubtful() -> House:
    """A asks X or op3; X declines."""
    house = asked("X", "op3")
    house.say(decline("X", ask_of(house)))
    return house


def withdrawn() -> House:
    """A asks X, and withdraws that; X asks for what A holds."""
    house = asked()
    house.say(withdraw("A", ask_of(house)))
    house.ask_for("X", ONE)
    return house


def lapsed() -> House:
    """A asks X for five seconds."""
    house = asked(giveUpMs=5_000)
    house.t_ms += 5_000
    return house


def left() -> House:
    """A session of A asks X, and is closed."""
    house = House()
    house.open("S1", "A")
    house.say(plead("S1", ONE, of=["X"]))
    house.close("S1")
    return house


def unfit() -> House:
    """A asks B, who answers to the same operator."""
    house = House()
    house.say(plead("A", ONE, of=["B"]))
    return house


def many() -> House:
    """A may wait for one approval, and asks for a second."""
    house = House(asks_per_principal=1)
    house.say(plead("A", ONE, of=["X"]))
    house.say(plead("A", TWO, of=["X"]))
    return house


def entangled() -> House:
    """A asks X, who asks for what A holds."""
    house = asked()
    house.ask_for("X", ONE)
    return house


def beholden() -> House:
    """X stands in line for what A holds; A asks X."""
    house = House()
    house.hold("A", ONE)
    house.hold("X", TWO)
    house.line("X", ONE)
    house.say(plead("A", ONE, of=["X"]))
    return house


# --- the lies -------------------------------------------------------------------------------------------------------


def _says(t: Telling, ask: Ask) -> int:
    return t.go_on(lambda house: house.say(ask))


def _revive(t: Telling) -> str:
    """The last ask of A, or of its session, lives on in the gateway's records."""
    ask_id = ask_of(t.house)
    t.pretend(f"ask/{ask_id}", how="", ended_seq=None, ended_at_ms=None, give_up_by_ms=t.house.t_ms + 60_000)
    return ask_id


def late(by: str) -> Callable[[Telling], int]:
    """An approver gives its word to an ask that is over."""

    def tell(t: Telling) -> int:
        ask_id = _revive(t)
        return _says(t, give(by, ask_id, word(t.house, by, ask_id)))

    return tell


def _asks_unfit(t: Telling) -> int:
    with patch.object(core, "fit_operator", lambda *_: did_of("op2")):
        return _says(t, plead("A", TWO, of=["C"]))


def _asks_again(t: Telling) -> int:
    t.forget("ask/")
    return _says(t, plead("A", TWO, of=["X"]))


def _older_rules(t: Telling) -> int:
    place = t.edit(t.at("approval.asked"), rulesDigest="7" * 64)
    return t.edit(place, actionDigest=action_digest_of(parse_leaf(t.leaves()[place])))


def _asks_in_circle(t: Telling) -> int:
    with patch.object(core, "find_plea_cycle", lambda *_: NO_CYCLE):
        return _says(t, plead("A", TWO, of=["X"]))


def _refused(error: str, number: int) -> Callable[[Telling], int]:
    """The last ask is answered with a refusal."""

    def tell(t: Telling) -> int:
        place = t.at("approval.asked")
        names = ("operation", "resources", "mode", "argumentsDigest", "cost")
        own = {name: t.entries[place][name] for name in names}
        return t.turn(place, "approval.refused", **own, error=error, number=number)

    return tell


def _still_entangled(t: Telling) -> int:
    _revive(t)
    return _says(t, acquire("X", ONE))


def _disentangled(t: Telling) -> int:
    t.forget("ask/")
    return _says(t, acquire("X", ONE))


def _needs_everybody(t: Telling) -> int:
    everybody = PropertyMock(side_effect=lambda: (did_of("X"),))
    t.house.say(plead("A", TWO, of=["X", "op3"]))
    t.read()
    t.house.cancel("X", t.house.own_ticket("X"))
    t.read()
    with patch.object(Pending, "needed", everybody):
        return _says(t, acquire("X", ONE, wait=True))


def _other_row(**members: Any) -> Callable[[Telling], int]:
    """The row of an ask in a circle says something else."""

    def tell(t: Telling) -> int:
        place = t.at("lease.refused")
        first, second = t.entries[place]["cycle"][0], t.entries[place]["cycle"][1] | members
        names = sorted({first["resource"], second["resource"]})
        return t.edit(place, cycle=[first, second], waitingOn=second["resource"], acquireOrder=names)

    return tell


def credulous(by: str, **changes: Any) -> Callable[[Telling], int]:
    """The gateway takes any statement for what was asked for."""

    def tell(t: Telling) -> int:
        ask_id = ask_of(t.house)
        with patch.object(core, "_misgiven", lambda *_: None):
            return _says(t, give(by, ask_id, word(t.house, by, ask_id, **changes)))

    return tell


def _strangers_word(t: Telling) -> int:
    ask_id = ask_of(t.house)
    dids = tuple(sorted((did_of("op2"), did_of("X"))))
    t.pretend(f"ask/{ask_id}", approvers=dids, operators=(did_of("op2"),) * 2)
    return _says(t, give("op2", ask_id, word(t.house, "op2", ask_id)))


def _nobodys_ask(t: Telling) -> int:
    """An answer to an ask that no entry made."""
    ask_id = ask_of(t.house)
    t.copy(f"ask/{ask_id}", "ask/A1", ask_id="A1", seq=1)
    return _says(t, give("X", "A1", word(t.house, "X", ask_id)))


def _declined_again(t: Telling) -> int:
    ask_id = _revive(t)
    t.pretend(f"ask/{ask_id}", declined=())
    return _says(t, decline("X", ask_id))


def _withdrawn_by_another(t: Telling) -> int:
    ask_id = ask_of(t.house)
    t.pretend(f"ask/{ask_id}", actor=did_of("B"))
    return _says(t, withdraw("B", ask_id))


def _told_over(t: Telling) -> int:
    """Too few have given, and the next is told that it is too late."""
    ask_id = ask_of(t.house)
    last = len(t.house.leaves) - 1
    t.pretend(f"ask/{ask_id}", how="given", ended_seq=last, ended_at_ms=NOW_MS)
    return _says(t, give("op3", ask_id, word(t.house, "op3", ask_id)))


def _end_told(**members: Any) -> Callable[[Telling], int]:
    return lambda t: t.edit(t.at("giving.refused"), **members)


def _scopeless(t: Telling) -> int:
    """A session that was not let admit asks."""
    t.house.open("S2", "A", verbs=["lease"])
    t.read()
    t.pretend(f"session/{did_of('S2')}", verbs=("admit", "lease"))
    return _says(t, plead("S2", TWO, of=["X"]))


LIES = (
    Lie("unfit approver asked", "It let A ask C, who answers to A's own operator.", unfit, _asks_unfit,
        "approver_unfit", "38.4"),
    Lie("approver called unfit", "It refused A, though X may approve.", waiting, _refused("approver_unfit", 612),
        "refusal_wrong", "10.1"),
    Lie("asked too often", "It let A ask again, who waited for as many as one may.", many, _asks_again,
        "too_many_asked", "38.5"),
    Lie("asked too often, it said", "It refused A, who asked for the first time.", waiting,
        _refused("too_many_asked", 644), "refusal_wrong", "10.1"),
    Lie("asked under other rules", "It told approvers of rules that were not in force.", waiting, _older_rules,
        "rules_digest_wrong", "37.10"),
    Lie("asked beyond a scope", "It let a session ask that was not let admit anything.", waiting, _scopeless,
        "outside_scope", "28.5"),
    Lie("asked in a circle", "It let A wait for the word of X, who waits for A.", beholden, _asks_in_circle,
        "deadlock", "24.4"),
    Lie("circle of a dead ask", "It refused X for an ask that A had withdrawn.", withdrawn, _still_entangled,
        "refusal_wrong", "10.1"),
    Lie("circle of an ask overlooked", "It told X to wait for A, who waits for X's word.", entangled, _disentangled,
        "refusal_wrong", "10.1"),
    Lie("circle through who is not needed", "It refused X a place in line, though op3 may approve as well.", wide,
        _needs_everybody, "refusal_wrong", "10.1"),
    Lie("another ask in a circle", "It named another ask than the one that A waits with.", entangled,
        _other_row(askId="A1"), "cycle_wrong", "24.5"),
    Lie("another name in a circle", "It named what is not asked for.", entangled, _other_row(resource=TWO),
        "cycle_wrong", "24.5"),
    Lie("wrong statement taken", "It took X's word for another operation as what was asked for.", waiting,
        credulous("X", operation="file.delete"), "approval_wrong", "38.4"),
    Lie("statement for another agent taken", "It took X's word for what B may do.", waiting,
        credulous("X", agent=did_of("B")), "approval_wrong", "38.4"),
    Lie("second answer taken", "It took X's word twice.", joint, credulous("X"), "approver_unfit", "38.4"),
    Lie("word against a no taken", "It took X's word, who had declined.", doubtful, credulous("X"),
        "approver_unfit", "38.4"),
    Lie("old statement taken", "It took a word that held no more.", waiting, credulous("X", expiresAtMs=NOW_MS),
        "approval_expired", "38.4"),
    Lie("stranger's word taken", "It took the word of op2, whom nobody had asked.", waiting, _strangers_word,
        "ask_not_yours", "38.6"),
    Lie("answer to nothing", "It took a word for an ask that no entry made.", waiting, _nobodys_ask,
        "ask_unknown", "38.6", also=("citation_wrong",)),
    Lie("word after the quorum", "It took op3's word after X's had been enough.", granted, late("op3"),
        "ask_ended", "38.6"),
    Lie("word after a no", "It took op3's word after X's no had ended the ask.", declined, late("op3"),
        "ask_ended", "38.6"),
    Lie("word after a withdrawal", "It took X's word after A had withdrawn.", withdrawn, late("X"),
        "ask_ended", "38.6"),
    Lie("word after its time", "It took X's word after the time that A had given.", lapsed, late("X"),
        "ask_ended", "38.6"),
    Lie("word for who is gone", "It took X's word for a session that was closed.", left, late("X"),
        "ask_ended", "38.6"),
    Lie("ask ended too early", "It told op3 that it was too late, though too few had given.", joint, _told_over,
        "refusal_wrong", "10.1"),
    Lie("no said twice", "It took X's no twice.", doubtful, _declined_again, "approver_unfit", "38.4"),
    Lie("withdrawn by another", "It let B withdraw what A had asked.", waiting, _withdrawn_by_another,
        "ask_not_yours", "38.6"),
    Lie("end of an ask told wrong", "It told op3 of another entry than the one that ended the ask.", granted,
        _end_told(endedSeq=1), "citation_wrong", "12.6"),
    Lie("end of an ask kept back", "It did not tell op3 which entry had ended the ask.", granted,
        _end_told(endedSeq=None), "citation_wrong", "12.6"),
)  # fmt: skip
