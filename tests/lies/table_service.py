"""Lies about the service and the ledger itself: starts and holidays, disputes, epochs, entry 0, what is kept quiet."""

from __future__ import annotations

from gateway.core.dispute import disputed
from tests.core.requests import acquire
from tests.lies.kit import House, Json, Lie, Telling
from tests.verifier import maker
from verifier.checkpoint import parse_checkpoint
from verifier.note import parse_vkey

NAME = "repo:a"


# --- the honest ledgers ---------------------------------------------------------------------------------------------


def working() -> House:
    """A and B hold one each."""
    house = House()
    house.hold("A", NAME, ttlMs=60_000)
    house.hold("B", "repo:b", ttlMs=60_000)
    return house


def restarted() -> House:
    """An outage of ten seconds while A holds; the lease ends when its holiday is over."""
    house = House()
    house.hold("A", NAME, ttlMs=5_000)
    house.start(10_000)
    house.later(10_000)
    return house


def restarted_twice() -> House:
    """Two outages while A holds."""
    house = House()
    house.hold("A", NAME, ttlMs=60_000)
    house.start(10_000)
    house.start(10_000)
    house.hold("B", "repo:b")
    return house


def in_dispute() -> House:
    """A reader shows another history, and nothing is granted any more."""
    house = working()
    note, log_vkey = other_history(), maker.LOG.vkey(maker.ORIGIN)
    house.run(house.t_ms, steps=[disputed(note, parse_checkpoint(note), [parse_vkey(log_vkey)])])
    house.say(acquire("C", "repo:c"))
    return house


def other_history() -> bytes:
    """A checkpoint of size 8 that the log key signed, of another history."""
    return maker.Ledger(leaves=[b"%d" % n for n in range(8)]).checkpoint()


# --- the lies -------------------------------------------------------------------------------------------------------


def _holiday_alone(t: Telling) -> int:
    """Without an outage everybody's leases get thirty seconds more."""
    until_ms = t.house.t_ms + 30_000
    return t.invent("lease.holiday", untilMs=until_ms, startedSeq=1, reason="start")


def _holiday_twice(t: Telling) -> int:
    place = t.at("lease.holiday")
    t.cut(place + 1)
    return t.again(place)


def _holiday_long(t: Telling) -> int:
    place = t.at("lease.holiday")
    t.cut(place + 1)
    return t.edit(place, untilMs=t.own(place)["untilMs"] + 20_000)


def _holiday_missing(t: Telling) -> int:
    t.cut(t.at("lease.holiday"))
    return t.go_on(lambda house: house.hold("C", "repo:c")) if not t.house.leases() else _next(t)


def _next(t: Telling) -> int:
    return t.invent("service.started", epoch=t.entries[-1]["epoch"] + 1, cause="start", isClean=True, gapMs=0)


def _other_reason(t: Telling) -> int:
    return t.edit(t.at("lease.holiday"), reason="recovery")


def _promised_later(t: Telling) -> int:
    """From B's grant on entries are called replicated."""
    place = t.at("lease.granted")
    for later in range(place, len(t.entries)):
        t.edit(later, durability="replicated")
    return place


def _outage_long(t: Telling) -> int:
    """The gap is told longer than it was, and the holiday with it."""
    place = t.at("service.started")
    t.cut(place + 2)
    t.edit(place, gapMs=25_000)
    t.edit(place + 1, untilMs=t.entries[place]["timeMs"] + 25_000)
    return place


def _within_holiday(t: Telling) -> int:
    """A's lease ends by its printed end, though a holiday runs."""
    t.cut(t.at("lease.expired"))
    house = restarted_up_to_its_holiday()
    house.shelf.records.pop("ledger/holiday")
    t.house, t.entries, t._read = house, [], 0
    t.read()
    return t.go_on(lambda house: house.later(1))


def restarted_up_to_its_holiday() -> House:
    house = House()
    house.hold("A", NAME, ttlMs=5_000)
    house.start(10_000)
    return house


def _epochs(t: Telling) -> int:
    """An entry of the node that was replaced stands among those of the one that replaced it."""
    return t.edit(t.at("lease.granted"), epoch=1)


def _epoch_jumps(t: Telling) -> int:
    for place in range(t.at("service.started"), len(t.entries)):
        t.edit(place, epoch=t.entries[place]["epoch"] + 1)
    return t.at("service.started")


def _opened_twice(t: Telling) -> int:
    """Entry 0 stands in the middle once more, and gives the parameters of its own."""
    return t.again(0)


def _opened_otherwise(t: Telling) -> int:
    place = t.again(0)
    return t.edit(place, parameters=t.entries[0]["parameters"] | {"maxHoldMs": 60_000})


def _dispute_forgotten(t: Telling) -> int:
    t.forget("ledger/dispute")
    return t.go_on(lambda house: house.hold("D", "repo:d"))


def _dispute_made_up(t: Telling) -> int:
    """A checkpoint of its own serves as the proof of another history."""
    own = maker.Ledger(leaves=t.leaves()[:5]).checkpoint()
    return _dispute(t, own)


def _dispute_by_stranger(t: Telling) -> int:
    """A checkpoint that somebody else signed serves as the proof."""
    return _dispute(t, maker.Ledger(leaves=[b"%d" % n for n in range(8)]).checkpoint(log=maker.STRANGER))


def _dispute(t: Telling, note: bytes) -> int:
    _, size, root, *_ = note.decode().split("\n")
    return t.invent("ledger.disputed", checkpoint=note.decode(), size=int(size), root=root)


def _refused_in_no_dispute(t: Telling) -> int:
    place = t.go_on(lambda house: house.say(acquire("C", "repo:c")))
    asked = {"resources": ["repo:c"], "mode": "write", "ttlMs": 30_000, "wait": False}
    return t.turn(place, "lease.refused", **asked, error="ledger_disputed", number=401)


def _unknown_type(t: Telling) -> int:
    """What B was granted is told in a type that no reader knows."""
    place = t.at("lease.granted")
    whole: Json = t.entries[place]
    t.edit(place, type="tallystick/lease.granted/2")
    assert whole["request"]
    return place


def _split(t: Telling) -> int:
    """A reader holds a checkpoint of the honest ledger; the one that is shown has another last entry."""
    t.held = maker.Ledger(leaves=t.leaves()).checkpoint()
    t.drop(t.at("lease.granted"))
    t.go_on(lambda house: None)
    t.house.t_ms += 1
    t.forget("lease/")
    t.invent("service.started", epoch=1, cause="start", isClean=True, gapMs=0)
    return -1


def _rewritten(t: Telling) -> int:
    """The reader's checkpoint lies below the end, and what was below it is other now."""
    t.held = maker.Ledger(leaves=t.leaves()[:8]).checkpoint()
    t.swap(t.at("agent.added", 0), t.at("agent.added", 1))
    return -1


def _cut_below_receipt(t: Telling) -> int:
    """B has the receipt of the last entry, which is gone."""
    ledger = maker.Ledger(leaves=t.leaves())
    t.held = ledger.proof(t.at("lease.granted")).partition("\n\n")[2].encode()
    t.cut(t.at("lease.granted"))
    return -1


def _cut(t: Telling) -> int:
    """The last entry is gone, though a reader holds a checkpoint above it."""
    t.held = maker.Ledger(leaves=t.leaves()).checkpoint()
    t.cut(len(t.entries) - 1)
    return -1


def _failed(t: Telling) -> int:
    """A grant is told as a failure of the gateway: this is the one decision that nobody can make again."""
    return t.turn(t.at("lease.granted"), "decision.failed", action="lease.acquire", error="decision_failed", number=901)


LIES = (
    Lie("holiday without outage", "It put off the end of all leases though nothing had stopped.", working,
        _holiday_alone, "citation_wrong", "12.6"),
    Lie("holiday twice", "It wrote the holiday of one start twice.", restarted, _holiday_twice, "citation_wrong",
        "12.6"),
    Lie("holiday too long", "It made the holiday longer than the outage.", restarted, _holiday_long, "holiday_wrong",
        "18.4"),
    Lie("holiday kept quiet", "It started without a holiday.", restarted, _holiday_missing, "holiday_missing",
        "17.5"),
    Lie("holiday for another reason", "It called the holiday of a start that of a recovery.", restarted, _other_reason,
        "holiday_wrong", "18.4"),
    Lie("another promise without a start", "It called entries replicated from one to the next.", working,
        _promised_later, "durability_wrong", "17.5"),
    Lie("outage told longer", "It told of a gap that was not there.", restarted, _outage_long, "gap_wrong", "17.5",
        ("holiday_wrong",)),
    Lie("expiry within a holiday", "It ended A's lease while a holiday ran.", restarted, _within_holiday,
        "expired_early", "7.7"),
    Lie("epochs interleaved", "It wrote an entry of the node that had been replaced.", restarted_twice, _epochs,
        "epoch_wrong", "18.3"),
    Lie("epoch skipped", "It went two epochs further at one start.", restarted_twice, _epoch_jumps, "epoch_wrong",
        "18.3"),
    Lie("entry 0 twice", "It opened the ledger a second time.", working, _opened_twice, "leaf_malformed", "2.3",
        is_tiles=True),
    Lie("opened otherwise", "It opened the ledger a second time, with another parameter.", working, _opened_otherwise,
        "leaf_malformed", "2.3"),
    Lie("dispute forgotten", "It granted something after two histories were known.", in_dispute, _dispute_forgotten,
        "granted_in_dispute", "12.9"),
    Lie("dispute made up", "It stopped all grants over a checkpoint that is its own.", working, _dispute_made_up,
        "dispute_unproven", "12.9"),
    Lie("dispute by a stranger", "It stopped all grants over a checkpoint that it never signed.", working,
        _dispute_by_stranger, "dispute_unproven", "12.9"),
    Lie("refused in no dispute", "It refused C for a dispute that there is not.", working, _refused_in_no_dispute,
        "refusal_wrong", "10.1"),
    Lie("unknown type hides a decision", "It told B's grant in a type that no reader knows.", working, _unknown_type,
        "type_unknown", "12.5", exit_code=3),
    Lie("split view", "It showed another last entry than a reader holds a checkpoint of.", working, _split,
        "two_roots", "13.2", exit_code=4, is_tiles=True),
    Lie("past rewritten", "It changed the order of entries below a checkpoint that a reader holds.", working,
        _rewritten, "two_roots", "13.2", exit_code=4),
    Lie("tail cut below a held receipt", "It cut off the entry that B holds a receipt of.", working,
        _cut_below_receipt, "truncated", "13.5"),
    Lie("truncated tail", "It cut off the last entry below a checkpoint that a reader holds.", working, _cut,
        "truncated", "13.5", is_tiles=True),
)  # fmt: skip
