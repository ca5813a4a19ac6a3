"""What an ask for approval is to the checker: whose it is, who may answer, and whom it can't do without."""

from __future__ import annotations

from dataclasses import dataclass, field

MEMORY_MS = 3_600_000


@dataclass(eq=False)
class Plea:
    """`approvers` are in the order of their DIDs, each with the operator that answered for it when it was asked."""

    ask_id: str
    seq: int
    actor: str
    principal: str
    operator: str
    operation: str
    names: list[str]
    mode: str
    arguments_digest: str
    action_digest: str
    rules_digest: str
    approvers: dict[str, str]
    quorum: int
    give_up_by_ms: int
    given: list[str] = field(default_factory=list)
    declined: list[str] = field(default_factory=list)
    ended_seq: int | None = None
    ended_ms: int | None = None

    def is_live(self, t_ms: int) -> bool:
        return self.ended_seq is None and t_ms < self.give_up_by_ms

    def is_known(self, t_ms: int) -> bool:
        return t_ms < MEMORY_MS + (self.give_up_by_ms if self.ended_ms is None else self.ended_ms)

    def end(self, seq: int, t_ms: int) -> None:
        self.ended_seq, self.ended_ms = seq, t_ms

    def is_enough(self, without: str = "") -> bool:
        """Say whether those who gave or still may are enough."""
        left = {who for one, who in self.approvers.items() if one not in self.declined and one != without}
        return len(left) >= self.quorum

    def needed(self) -> list[str]:
        """Return who has not answered, and without whom it can't be enough."""
        open_ones = [one for one in self.approvers if one not in (*self.given, *self.declined)]
        return [one for one in open_ones if not self.is_enough(one)]
