"""What a gateway can do without a finding, as no entry can show it: the honest limits, and what does show each.

They are here so that nobody takes the table of lies for more than it is; a limit that the auditor finds one day fails
here, and moves there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.core.requests import acquire
from tests.lies.kit import House, Story, Telling
from tests.lies.table_leases import ran_out
from tests.lies.table_service import restarted, working


def two_ran_out() -> House:
    """A's lease runs out, then B's on another name, and nobody asks for anything."""
    house = House()
    house.hold("A", "repo:a", ttlMs=5_000)
    house.hold("B", "repo:b", ttlMs=120_000)
    house.later(5_000)
    house.later(115_000)
    return house


@dataclass(frozen=True)
class Limit:
    """`tell` changes the honest ledger of `story` in a way that the auditor of that ledger alone can't call wrong.

    `fact` is a figure of the report that grows by it, with its value; most leave none.
    """

    name: str
    did: str
    shown_by: str
    story: Story
    tell: Callable[[Telling], object]
    fact: tuple[str, object] | None = None


def _failed(t: Telling) -> int:
    return t.turn(t.at("lease.granted"), "decision.failed", action="lease.acquire", error="decision_failed", number=901)


def _ignored(t: Telling) -> int:
    return t.cut(len(t.entries) - 1)


def _kept_back(t: Telling) -> None:
    early = t.house.now(acquire("C", "repo:c"))
    t.house.t_ms += 60_000
    t.go_on(lambda house: house.play(house.t_ms, early))


def _reordered(t: Telling) -> None:
    """Two ask in the same moment for the same: the second to arrive is decided first."""

    def act(house: House) -> None:
        first, second = house.now(acquire("C", "repo:c")), house.now(acquire("D", "repo:c"))
        house.play(house.t_ms, second)
        house.play(house.t_ms, first)

    t.go_on(act)


def _swept_late(t: Telling) -> None:
    place = t.at("lease.expired")
    t.cut(place + 1)
    t.edit(place, timeMs=t.entries[place]["timeMs"] + 50_000)


def _not_ended_yet(t: Telling) -> None:
    t.drop(t.at("lease.expired", 0))


def _promised(t: Telling) -> None:
    for place in range(t.at("service.started"), len(t.entries)):
        t.edit(place, durability="replicated")


LIMITS = (
    Limit("failure made up", "It told B that it could not decide, where it had to grant.",
          "each report counts such entries (`unexplained`); B has the receipt of each", working, _failed,
          ("unexplained", 1)),
    Limit("request ignored", "It never answered B.", "B, who got no answer, and nobody else", working, _ignored),
    Limit("request kept back", "It decided C's request a minute late, within its window.",
          "C, who waited; the window is C's own choice", working, _kept_back),
    Limit("order of arrival", "It decided D before C, who had come first.", "nothing: the order is the gateway's word",
          working, _reordered),
    Limit("expiry written late", "It wrote an expiry fifty seconds after the end, when nothing touched the names.",
          "each report tells the slowest end (`slowestEndMs`); whoever asks for the names: then it must come first",
          ran_out, _swept_late, ("slowestEndMs", 50_000)),
    Limit("expiry not written yet", "It did not write A's expiry as long as nobody asked for anything.",
          "each report tells what is over and not ended (`outstanding`), and says so after a minute; the next request, "
          "whatever it asks for (17.9)", two_ran_out, _not_ended_yet,
          ("outstanding", {"count": 1, "oldestMs": 115_000})),
    Limit("durability promised", "It called every entry after a start replicated.",
          "nothing: how entries are kept is its word", restarted, _promised),
)  # fmt: skip
