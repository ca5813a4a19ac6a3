"""Lies about batches: commands left out, doubled, reordered, answered from afar or otherwise than asked."""

from __future__ import annotations

from tests.core.requests import acquire, batch
from tests.lies.kit import House, Lie, Telling

NAMES = ("repo:a", "repo:b", "repo:c")


def three() -> House:
    """A asks for three names in one batch."""
    house = House()
    house.say(batch("A", *(acquire("A", name, ttlMs=60_000) for name in NAMES)))
    return house


def one_in_the_way() -> House:
    """B holds the second of A's three names."""
    house = House()
    house.hold("B", NAMES[1])
    house.say(batch("A", *(acquire("A", name, ttlMs=60_000) for name in NAMES)))
    return house


def all_or_nothing() -> House:
    """B holds the second of A's three names, and A wants all or nothing; then nothing is in the way."""
    house = House()
    lease = house.hold("B", NAMES[1])
    house.say(batch("A", *(acquire("A", name, ttlMs=60_000) for name in NAMES), isAtomic=True))
    house.free("B", lease)
    house.say(batch("A", *(acquire("A", name, ttlMs=60_000) for name in NAMES), isAtomic=True))
    return house


def _missing(t: Telling) -> int:
    """The last answer is kept quiet."""
    t.cut(t.at("lease.granted"))
    return len(t.entries) - 1


def _moved_up(t: Telling) -> int:
    """The second answer is kept quiet, and the third says that it is the second."""
    place = t.drop(t.at("lease.granted", 1))
    t.edit(place, request=t.entries[place]["request"] | {"index": 1})
    return place


def _swapped(t: Telling) -> int:
    """The second and the third change places with all that they say."""
    one, other = t.at("lease.granted", 1), t.at("lease.granted", 2)
    first, second = t.entries[one], t.entries[other]
    names = ("resources", "schemes")
    mine, theirs = ({name: entry[name] for name in names} for entry in (first, second))
    t.edit(one, **theirs)
    t.edit(other, **mine)
    return one


def _twice(t: Telling) -> int:
    """One command is answered twice, and the last not at all."""
    one, other = t.at("lease.granted", 1), t.at("lease.granted", 2)
    names = ("resources", "schemes", "mode")
    return t.edit(other, **{name: t.entries[one][name] for name in names})


def _from_afar(t: Telling) -> int:
    """One more command is answered, below the header of a batch long over."""
    header = t.at("batch.received")
    place = t.go_on(lambda house: house.hold("A", "repo:d"))
    return t.edit(place, request={"batch": header, "index": place - header - 1})


def _between(t: Telling) -> int:
    """A request of B is decided between two commands."""
    place = t.go_on(lambda house: house.hold("B", "repo:d"))
    entry = t.entries.pop(place)
    t.entries.insert(t.at("lease.granted", 1), entry)
    return t.at("lease.granted", 1)


def _as_one(t: Telling) -> int:
    """The honest answer to the same batch that is not atomic, below a header that says it is."""
    other = Telling(one_in_the_way())
    t.entries = other.entries
    header = t.at("batch.received")
    asked = t.house.now(batch("A", *(acquire("A", name, ttlMs=60_000) for name in NAMES), isAtomic=True))
    t.house = other.house
    place = t.answer(t.sign(asked), "batch.received", count=3, isAtomic=True)
    t.edit(header, request=t.entries[place]["request"], isAtomic=True)
    t.drop(place)
    return t.at("lease.refused")


def _refused_for_nothing(t: Telling) -> int:
    """The batch that had nothing in its way is refused like the one before."""
    told = t.own(t.at("batch.refused"))
    place = t.at("batch.received")
    t.cut(place + 1)
    return t.turn(place, "batch.refused", **told | {"stampede": {"admitted": True, "waitMs": 50}, "retryAfterMs": 50})


def _other_index(t: Telling) -> int:
    """The batch is refused in the name of its first command, which nothing stands against."""
    return t.edit(t.at("batch.refused"), index=0)


def _otherwise(t: Telling) -> int:
    """A command is answered with another name."""
    return t.edit(t.at("lease.granted", 1), resources=["repo:z"])


def _later(t: Telling) -> int:
    """The last command is answered a second later."""
    place = t.at("lease.granted")
    time_ms = t.entries[place]["timeMs"] + 1_000
    token, hold = time_ms * 1_000, time_ms + 3_600_000
    return t.edit(place, timeMs=time_ms, expiresAtMs=time_ms + 60_000, fencingToken=token, holdUntilMs=hold)


def _counted(t: Telling) -> int:
    """The header says two commands, where A signed three."""
    t.cut(t.at("lease.granted"))
    return t.edit(t.at("batch.received"), count=2)


LIES = (
    Lie("one command missing", "It ended its ledger before the last command was answered.", three, _missing,
        "batch_broken", "31.2"),
    Lie("commands moved up", "It left out the second answer and called the third the second.", three, _moved_up,
        "body_differs", "16.5", ("token_wrong",)),
    Lie("commands miscounted", "It said that A signed two commands.", three, _counted, "body_differs", "16.5"),
    Lie("commands out of order", "It answered the third command in the place of the second.", three, _swapped,
        "body_differs", "16.5"),
    Lie("batch body cited twice", "It answered one command twice.", three, _twice, "body_differs", "16.5",
        ("not_extended",)),
    Lie("batch cited from afar", "It answered a fourth command below a header of three.", three, _from_afar,
        "batch_afar", "31.2"),
    Lie("decided between commands", "It decided a request of B within A's batch.", three, _between, "batch_broken",
        "31.2", ("token_wrong", "leaf_malformed")),
    Lie("command answered otherwise", "It granted another name than the command asks for.", three, _otherwise,
        "body_differs", "16.5"),
    Lie("command answered later", "It dated the last answer a second after its batch.", three, _later,
        "batch_differs", "31.5"),
    Lie("all or nothing torn", "It carried out two commands of an atomic batch and refused the third.",
        all_or_nothing, _as_one, "batch_refusal_due", "31.4"),
    Lie("atomic batch refused for nothing", "It refused a batch that nothing stood against.", all_or_nothing,
        _refused_for_nothing, "refusal_wrong", "10.1"),
    Lie("wrong command blamed", "It refused a batch for a command that nothing stood against.", all_or_nothing,
        _other_index, "refusal_wrong", "10.1"),
)  # fmt: skip
