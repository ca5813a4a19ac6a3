"""The guarded resource: objects that agents change under their leases, behind the naive rule of protocol 8.3.

A write says which version it was made from. One that is let in although the object moved meanwhile is a lost update:
the guard compares tokens only, so with fencing nobody ever gets that far.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.sim.names import covers, share


@dataclass(frozen=True)
class Pass:
    """What a verified leaf says about a lease."""

    actor: str
    token: int
    mode: str
    names: tuple[str, ...]
    classes: tuple[tuple[str, str], ...]


@dataclass
class Guard:
    """Every object by name: its version, and every lease that was seen at the guard."""

    versions: dict[str, int] = field(default_factory=dict)
    seen: list[Pass] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    writers: dict[str, list[str]] = field(default_factory=dict)  # of each version, in order
    is_fencing: bool = True

    def read(self, lease: Pass, name: str) -> int | None:
        """Return the version, or None when a newer lease was seen."""
        if not self._enter(lease, name):
            return None
        return self.versions.get(name, 0)

    def write(self, lease: Pass, name: str, version: int) -> bool:
        """Write what was made from `version`; False when a newer lease was seen."""
        if not self._enter(lease, name):
            return False
        now, writers = self.versions.get(name, 0), self.writers.setdefault(name, [])
        if any(writer != lease.actor for writer in writers[version:]):  # two processes of one key are one actor
            self.lost.append(f"{lease.actor[-6:]} overwrites version {now} of {name} made from {version}")
        self.versions[name] = now + 1
        writers.append(lease.actor)
        return True

    def _enter(self, lease: Pass, name: str) -> bool:
        for other in self.seen if self.is_fencing else ():
            stands = other.actor != lease.actor and any(covers(held, name) for held in other.names)
            cls = dict(other.classes).get(name.split(":")[0], "exclusive")
            if stands and other.token > lease.token and not share(cls, other.mode, lease.mode):
                return False
        if lease not in self.seen:
            self.seen.append(lease)
        return True
