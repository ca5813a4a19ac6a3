"""Every number that a decision depends on."""

from __future__ import annotations

from dataclasses import dataclass, fields

from gateway.core.record_codec import camel
from verifier.wire import JsonObject, Malformed


@dataclass(frozen=True, slots=True)
class Parameters:
    """Every number a decision depends on, as entry 0 of the ledger states them."""

    ttl_min_ms: int = 1_000
    ttl_max_ms: int = 3_600_000
    sweep_ms: int = 1_000
    holiday_ms: int = 30_000
    skew_ms: int = 30_000
    idempotency_ms: int = 86_400_000
    wait_edge_ms: int = 10_000
    stampede_base_ms: int = 25
    stampede_max_ms: int = 800
    stampede_admitted: int = 8
    stampede_reset_ms: int = 60_000
    max_hold_ms: int = 3_600_000
    rate_per_second: int = 20
    rate_burst: int = 200
    poll_ms: int = 30_000
    claim_ms: int = 10_000
    wait_max_ms: int = 3_600_000
    queue_per_resource: int = 256
    queue_per_principal: int = 64
    queue_total: int = 10_000
    lock_delay_ms: int = 0
    deadlock_nodes: int = 1_000
    passes_max: int = 32
    reserve_after_ms: int = 60_000
    trust_start: int = 50_000
    trust_max: int = 100_000
    trust_gain: int = 500
    trust_gain_hold_ms: int = 1_000
    trust_gain_max: int = 1_000
    trust_gain_window_ms: int = 3_600_000
    trust_loss: int = 5_000
    held_per_principal: int = 1_024
    session_idle_ms: int = 120_000
    sessions_per_principal: int = 1_024
    trial_decisions: int = 35
    trial_ms: int = 604_800_000
    trial_ttl_max_ms: int = 60_000
    witness_ms: int = 60_000
    admission_ms: int = 60_000
    asks_per_principal: int = 64

    def members(self) -> JsonObject:
        """Return the member `parameters` of entry 0."""
        return {camel(field.name): getattr(self, field.name) for field in fields(self)}

    @staticmethod
    def from_members(members: JsonObject) -> Parameters:
        """Return the parameters entry 0 states; Malformed unless it states exactly these, as integers."""
        numbers = {name: value for name, value in members.items() if type(value) is int}
        names = {camel(field.name): field.name for field in fields(Parameters)}
        if set(numbers) != set(names) or len(numbers) != len(members):
            raise Malformed("parameters of entry 0 are not exactly those of this version, as integers")
        return Parameters(**{names[member]: value for member, value in numbers.items()})
