"""What happens to several nodes on one ledger, and what is demanded of them beside what is demanded of the ledger.

*shown*: no node ever shows a head that a fail-over could take away. *learnt*: a claim that is parked on another node
than the one that made the offer hears of it within one poll, though every hint is lost. *calm*: where nothing fails,
nobody gives up what it knows of the ledger. The server itself accuses who writes on a new connection without a start
(*epoch*), who goes on after a fail-over without one, so that what ran out meanwhile has no holiday (*holiday*), and
whoever writes a batch of which was said that it never will be there (*landed*).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway.core.record_keys import ticket_key

if TYPE_CHECKING:
    from tests.sim.node import Node, Process
    from tests.sim.server import Server
    from tests.sim.simulation import Simulation

LEARN_MS = 500  # beyond one poll: for the writer's batch under way, and the head that others have
LULL_MS = 10_000  # after the last fault; a call of the store is given up by then, and what it was for done again
JOURNAL_MIN = 64  # batches; who falls behind a shorter one reads the ledger anew although nothing fails


class Several:
    """Lets servers and nodes fail, and looks at every node at every turn of the loop."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._shown: dict[int, object] = {}  # by process
        self._recoveries: dict[int, int] = {}

    # -- what happens -------------------------------------------------------------------------------------------------

    def let_happen(self, server: Server, node: Node) -> None:
        """Let happen what happens to servers, and to nodes that share one."""
        chance, ms = self._simulation.chance, self._simulation.rng.randint
        if chance("promote"):
            self._promote(server)
        if chance("standby_lost"):
            self._lasts("the stand-by is lost", lost_ms := ms(500, 12_000), 3_000)
            server.standby_back_ms = self._simulation.loop.now_ms + lost_ms
        if chance("unfit"):
            sweep_ms = self._simulation.config.parameters.sweep_ms
            self._lasts("the server is unfit", unfit_ms := ms(500, 9_000), 2 * sweep_ms)
            server.unfit_until_ms = self._simulation.loop.now_ms + unfit_ms
        if chance("freeze") and node.process is not None:
            frozen_ms = self._simulation.rng.choice([500, 5_000, 20_000])
            self._lasts(f"{node.name} is frozen", frozen_ms, 5_000)
            node.process.freeze(frozen_ms / 1_000)

    def _promote(self, server: Server) -> None:
        offset_ms = server.clock_offset_ms
        self._lasts("the stand-by takes over", 0, 3_000)
        server.fail_over()
        self._simulation.checker.slack_ms += 2_000 * (server.clock_offset_ms != offset_ms)

    def _lasts(self, what: str, ms: int, traces_ms: int) -> None:
        self._simulation.say(what)
        self._simulation.hinder(ms + traces_ms)

    # -- what is demanded ---------------------------------------------------------------------------------------------

    def look(self) -> None:
        for node in self._simulation.nodes:
            if node.process is not None and not node.process.is_dead:
                self._look_at(node.process)

    def _look_at(self, process: Process) -> None:
        number, confirmed = process.number, process.sequencer._tail.confirmed
        if confirmed is not None and confirmed is not self._shown.get(number):
            self._shown[number] = confirmed
            roots = self._simulation.checker.roots.at
            is_ours = confirmed.size < len(roots) and roots[confirmed.size] == confirmed.root
            self._simulation.must(is_ours, "shown", f"process {number} shows {confirmed.size} entries, not all durable")
        recoveries = process.sequencer.counters.recoveries
        if recoveries > self._recoveries.get(number, 0):
            self._recoveries[number] = recoveries
            self._recovers(process)

    def _recovers(self, process: Process) -> None:
        simulation = self._simulation
        is_lull = simulation.loop.now_ms - max(simulation.hindered_ms, process.ready_ms) > LULL_MS
        is_judged = is_lull and simulation.config.journal_max >= JOURNAL_MIN and not simulation.database.is_failing
        simulation.must(not is_judged, "calm", f"process {process.number} gives its book up although nothing fails")

    def offered(self, entry: dict[str, Any]) -> None:
        """Somebody's turn has come; whoever has the claim parked must hear of it."""
        simulation = self._simulation
        up = [node.process for node in simulation.nodes if node.is_up and node.process is not None]
        since_ms = simulation.loop.now_ms
        later_s = (simulation.config.follow_ms + LEARN_MS) / 1_000
        simulation.loop.call_later(later_s, self._must_know, ticket_key(entry["ticketId"]), up, since_ms)

    def _must_know(self, key: str, up: list[Process], since_ms: int) -> None:
        simulation = self._simulation
        if simulation.hindered_ms >= since_ms or simulation.database.is_failing:
            return
        for process in up:
            if not process.is_dead and process.sequencer.is_ready:
                is_parked = key in process.sequencer.parking._spots
                simulation.must(not is_parked, "learnt", f"process {process.number} keeps {key} parked after its offer")
