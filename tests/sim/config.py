"""What a seed is: which faults exist at all, how often each happens, and every number of the configuration.

A fault that always happens hides those that need a quiet moment, so a seed has a few of them, drawn (swarm testing).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any

from gateway.core.parameters import Parameters

# Each fault with the largest chance it is given, by who asks for it.
FAULTS: dict[str, float] = {
    # engine, for each call
    "busy": 0.06,
    "lost": 0.06,
    "kept": 0.06,
    "unreplicated": 0.08,
    "fail_over": 0.5,
    "unreachable": 0.3,
    "load_busy": 0.2,
    "lock_busy": 0.04,
    "keep_fails": 0.2,
    "slow": 0.03,
    "zombie": 0.7,
    # network, for each message
    "drop": 0.06,
    "drop_reply": 0.06,
    "duplicate": 0.08,
    "late": 0.08,
    "leave": 0.05,
    # agents, for each occasion
    "crash": 0.04,
    "pause": 0.06,
    "replay": 0.05,
    "stray": 0.35,
    "new_key": 0.3,
    "ignore_retry": 0.6,
    "forget": 0.15,
    "foreign_anchor": 0.03,
    "cancel": 0.1,
    "poll_late": 0.3,
    # the director, for each occasion
    "dispute": 0.03,
    "kill": 0.5,
    "kill_at_step": 0.5,
    "graceful": 0.2,
    "failing_disk": 0.2,
    "older_file": 0.3,
    "step_wall": 0.3,
    "step_boot": 0.1,
    "partition": 0.3,
    "second_node": 0.5,
    # operators, for each occasion
    "remove": 0.2,
    "break": 0.8,
    "transfer": 0.4,
    "set_scheme": 0.3,
}
# What only happens where several nodes may write, each with a server's session.
NODE_FAULTS: dict[str, float] = {
    # engine, for each call
    "in_flight": 0.05,
    "half_open": 0.03,
    "confirm_lost": 0.15,
    "confirm_kept": 0.15,
    "look_fails": 0.1,
    "news_busy": 0.1,
    "lingers": 0.8,
    "hint_lost": 1.0,
    # the director, for each occasion
    "promote": 0.7,
    "standby_lost": 0.4,
    "unfit": 0.25,
    "freeze": 0.5,
    # for each fail-over
    "step_db": 0.8,
}
# What is drawn again where everything is about nodes.
FAILING = ("kill", "unreplicated", "lost", "kept", "fail_over", "unreachable", "zombie", "lock_busy", "load_busy")
# What only happens where there are several operators, sessions and API keys.
COMPANY_FAULTS: dict[str, float] = {
    # agents and sessions, for each occasion
    "silent": 0.5,
    "twin": 0.5,
    "odd_chain": 0.4,
    "meddle": 0.25,
    "let_run": 0.3,
    # operators, for each occasion
    "dismiss": 0.4,
    "take_over": 0.3,
    "api_keys": 0.6,
    "close": 0.4,
}
# What only happens where the keys of the gateway change.
KEY_FAULTS: dict[str, float] = {
    # the keeper of the root, for each occasion
    "rotate": 0.7,
    "disown": 0.4,
    "odd_key": 0.7,
    # for each batch that has an entry about a key
    "key_lost": 0.3,
    "key_kept": 0.4,
    "key_kill": 0.5,  # between commit and signing
    # for each start: a private key in force is not there
    "lacking": 0.3,
}
# What only happens where there are witnesses, for each message, or each occasion of the director.
WITNESS_FAULTS: dict[str, float] = {
    "witness_drop": 0.2,
    "witness_slow": 0.3,
    "witness_down": 0.5,
    "stay_older": 0.8,
}
# What only happens where rules are loaded, for each question to their engine.
ADMISSION_FAULTS: dict[str, float] = {
    "engine_raises": 0.2,
    "engine_silent": 0.2,
}
KEYS_SHARE = 0.25  # of the worlds
WITNESS_SHARE = 0.25
ADMISSION_SHARE = 0.25
COMPANY_SHARE = 0.6  # of the worlds
HECTIC_SHARE = 0.2  # of those
FORGETLESS_SHARE = 0.04  # of those too
FAULTS_SHARE = 0.35
CROWDED_SHARE = 0.25  # of the worlds
CLASSES = ("read-safe", "exclusive", "irreversible")
LOCKS = ("lock:a", "lock:b", "lock:c", "lock:d")
AGENTS = ("ann", "bob", "cyd", "dee", "eve", "fay", "gus", "hal", "ivy", "jon")
OPERATORS = ("op", "ola", "pia", "quy", "rob")


@dataclass(frozen=True)
class Config:
    """One drawn world. Times in ms of virtual time."""

    seed: int
    parameters: Parameters
    faults: dict[str, float]
    agents: tuple[str, ...]
    names: tuple[str, ...]
    duration_ms: int
    requests_max: int
    is_replicated: bool
    is_past_desk: bool
    is_rated: bool  # the desk lets nobody in more often than entry 0 says
    is_real: bool
    offsets_ms: tuple[int, ...]  # of the two machines' wall clocks
    think_ms: int
    ttl_ms: tuple[int, int]
    set_max: int
    wait_share: float  # of acquires that stand in line
    nest_share: float  # of jobs that take another lease meanwhile: the way to a deadlock
    give_up_ms: int
    modes: tuple[str, ...]
    schemes: tuple[dict[str, Any], ...]  # bodies of scheme.set before the first fault
    batch_max: int
    operators: tuple[str, ...] = ("op",)  # the first is entry 0's
    session_share: float = 0.0  # of jobs that a key of short life is made for
    lives_ms: tuple[int, ...] = (600_000,)  # for how long delegations hold
    scope_share: float = 0.0  # of delegations that name resources
    batch_share: float = 0.0  # of jobs that ask for many things at once
    commands_max: int = 24
    trial_names: int = 0  # so many names there are for the agent on trial; without any there is no such agent
    is_custodial: bool = False  # the last agent's key is the gateway's
    due_max: int = 256  # so many ends a batch writes before it goes on to commands
    is_rotating: bool = False  # the gateway's keys change
    promised: tuple[str, ...] = ()  # purposes whose next key entry 0 commits to
    witnesses: int = 0  # so many honest ones
    liars: int = 0
    witness_offsets_ms: tuple[int, ...] = (0, 0, 0)
    witness_entry_ms: int = 10_000
    admit_share: float = 0.0  # of times that somebody asks before it writes
    is_policed: bool = False  # operators load rules
    plead_share: float = 0.0  # of times that somebody asks for approval, or answers
    nodes: int = 1  # machines with a gateway each
    follow_ms: int = 500  # how often a node looks at what others wrote
    journal_max: int = 64  # batches that the store keeps for those who follow

    def but(self, **changes: object) -> Config:
        return replace(self, **changes)  # type: ignore[arg-type]


def draw(seed: int) -> Config:
    """Return the configuration of a seed; the same for the same seed, always."""
    rng = Random(f"configuration {seed}")
    faults = {name: rng.uniform(most / 4, most) for name, most in FAULTS.items() if rng.random() < FAULTS_SHARE}
    is_replicated = rng.random() < 0.5
    if not is_replicated:
        for name in ("unreplicated", "fail_over", "unreachable", "second_node", "zombie"):
            faults.pop(name, None)
    else:
        faults.pop("older_file", None)
    ttl_ms = rng.choice([(1_000, 3_000), (1_000, 10_000), (2_000, 30_000)])
    modes = rng.choice([("write",), ("write",), ("read", "write"), ("read", "append", "append", "write", "delete")])
    config = Config(
        seed=seed,
        parameters=_parameters(rng, ttl_ms),
        faults=faults,
        agents=AGENTS[: rng.choice([2, 3, 4, 6, 10])],
        names=_names(rng),
        duration_ms=rng.choice([20_000, 60_000]),
        requests_max=rng.randint(60, 120),
        is_replicated=is_replicated,
        # Log time follows a boot clock that jumps, so at the desk no signature of true time is of its time any more.
        is_past_desk=rng.random() < 0.5 or "step_boot" in faults,
        is_rated=rng.random() < 0.3,
        is_real=seed % 10 == 0,
        offsets_ms=(rng.randint(-3_000, 3_000), rng.randint(-3_000, 3_000)),
        think_ms=rng.choice([50, 300, 1_000]),
        ttl_ms=ttl_ms,
        set_max=rng.choice([1, 2, 4]),
        wait_share=rng.choice([0.0, 0.3, 0.8, 1.0]),
        nest_share=rng.choice([0.0, 0.4, 0.8]),
        give_up_ms=rng.choice([3_000, 20_000, 40_000]),
        modes=modes,
        schemes=_schemes(rng, ("append-only", *CLASSES) if "append" in modes else CLASSES),
        batch_max=rng.choice([1, 2, 8, 256]),
    )
    config = _crowded(rng, config) if rng.random() < CROWDED_SHARE else config
    config = _shared(Random(f"nodes {seed}"), config) if is_replicated else config
    rng = Random(f"company {seed}")
    config = _company(rng, config) if rng.random() < COMPANY_SHARE else config
    rng = Random(f"keys {seed}")
    config = _rotating(rng, config) if rng.random() < KEYS_SHARE else config
    config = _watched(rng, config) if rng.random() < WITNESS_SHARE else config
    rng = Random(f"admissions {seed}")
    return _admitting(rng, config) if rng.random() < ADMISSION_SHARE else config


def _shared(rng: Random, config: Config) -> Config:
    """Let there be up to four nodes, on a server that several may write to."""
    faults = {name: rng.uniform(most / 4, most) for name, most in NODE_FAULTS.items() if rng.random() < FAULTS_SHARE}
    return config.but(
        faults=config.faults | faults, nodes=rng.choice([2, 2, 3, 4]) if "second_node" in config.faults else 1,
        follow_ms=rng.choice([100, 500, 2_000]), journal_max=rng.choice([3, 10, 1_024]),
        offsets_ms=(*config.offsets_ms, rng.randint(-3_000, 3_000), rng.randint(-3_000, 3_000)),
    )  # fmt: skip


def several(config: Config) -> Config:
    """Let a drawn world be one of up to four nodes, with more of what happens to them, and more who wait."""
    rng = Random(f"several {config.seed}")
    drawn = {name: FAULTS[name] for name in FAILING} | NODE_FAULTS
    faults = {name: rng.uniform(most / 4, most) for name, most in drawn.items() if rng.random() < 0.4}
    kept = {name: share for name, share in config.faults.items() if name != "older_file"}
    return config.but(
        is_replicated=True, nodes=1 + config.seed % 4, faults=kept | faults, witnesses=0, liars=0, is_real=False,
        offsets_ms=tuple(rng.randint(-3_000, 3_000) for _ in range(4)), follow_ms=rng.choice([100, 500, 2_000]),
        journal_max=rng.choice([3, 64, 1_024]), wait_share=rng.choice([config.wait_share, 0.8]),
        is_past_desk="step_boot" in kept or rng.random() < 0.2, think_ms=rng.choice([300, 1_000, 2_000]),
    )  # fmt: skip


def _admitting(rng: Random, config: Config) -> Config:
    """Let agents ask before they write, others approve of it, and operators load rules."""
    is_policed = rng.random() < 0.6
    faults = {name: rng.uniform(most / 4, most) for name, most in ADMISSION_FAULTS.items() if rng.random() < 0.2}
    numbers = replace(
        config.parameters, admission_ms=rng.choice([1_000, 60_000]), asks_per_principal=rng.choice([1, 2, 64])
    )
    return config.but(
        parameters=numbers, faults=config.faults | (faults if is_policed else {}), is_policed=is_policed,
        admit_share=rng.choice([0.3, 0.9]), plead_share=rng.choice([0.0, 0.2, 0.4]),
    )  # fmt: skip


def _rotating(rng: Random, config: Config) -> Config:
    """Let the keys of the gateway come and go."""
    faults = {name: rng.uniform(most / 4, most) for name, most in KEY_FAULTS.items() if rng.random() < 0.6}
    faults["rotate"] = faults.get("rotate", KEY_FAULTS["rotate"])
    promised = tuple(purpose for purpose in ("log", "receipt") if rng.random() < 0.7)
    return config.but(faults=config.faults | faults, is_rotating=True, promised=promised)


def _watched(rng: Random, config: Config) -> Config:
    """Let there be witnesses. Several nodes are left out: who of them asks is not the engine's business."""
    faults = {name: rng.uniform(most / 4, most) for name, most in WITNESS_FAULTS.items() if rng.random() < 0.6}
    kept = {name: share for name, share in config.faults.items() if name != "second_node"}
    if not config.is_replicated and rng.random() < 0.5:
        kept |= {"older_file": 0.5, "kill": 0.4}
        faults["stay_older"] = WITNESS_FAULTS["stay_older"]
    return config.but(
        nodes=1, faults=kept | faults, witnesses=rng.choice([1, 3, 3]), liars=rng.choice([0, 1]),
        witness_offsets_ms=tuple(rng.randint(-3_000, 3_000) for _ in range(3)),
        witness_entry_ms=rng.choice([1_000, 10_000]), duration_ms=60_000,
    )  # fmt: skip


def _company(rng: Random, config: Config) -> Config:
    """Let there be several operators, keys of short life, API keys and many commands in one request."""
    faults = {name: rng.uniform(most / 4, most) for name, most in COMPANY_FAULTS.items() if rng.random() < 0.5}
    numbers = replace(
        config.parameters,
        session_idle_ms=rng.choice([2_000, 5_000, 20_000]),
        sessions_per_principal=rng.choice([1, 2, 1_024, 1_024]),
        trial_decisions=rng.choice([6, 35]),
        trial_ms=rng.choice([8_000, 604_800_000, 604_800_000]),
        trial_ttl_max_ms=rng.choice([2_000, 60_000]),
    )
    is_huge = not config.is_rated and rng.random() < 0.02  # a bucket would owe for it for ever
    has_delays = numbers.lock_delay_ms > 0 or any(row.get("lockDelayMs") for row in config.schemes)
    config = config.but(
        parameters=numbers, faults=config.faults | faults, operators=OPERATORS[: rng.choice([1, 2, 2, 3, 5])],
        agents=config.agents[:6], session_share=rng.choice([0.0, 0.2, 0.5]),
        lives_ms=rng.choice([(3_000, 8_000), (8_000, 600_000), (600_000,)]), scope_share=rng.choice([0.0, 0.5, 1.0]),
        batch_share=rng.choice([0.0, 0.2, 0.5]), commands_max=256 if is_huge else rng.choice([3, 8, 24]),
        trial_names=rng.choice([0, 1, 3]), is_custodial=rng.random() < 0.4,
        # A delay ends without an entry, so that one which nobody waits for can be in the way of what is due later.
        due_max=256 if has_delays else rng.choice([1, 3, 256]),
    )  # fmt: skip
    config = _hectic(rng, config) if rng.random() < HECTIC_SHARE else config
    return _forgetless(config) if rng.random() < FORGETLESS_SHARE else config


def _forgetless(config: Config) -> Config:
    """Let sessions be opened and closed until no more can be remembered, an agent's and an operator's own."""
    return config.but(
        parameters=replace(config.parameters, sessions_per_principal=1), agents=config.agents[:1],
        operators=config.operators[:1], session_share=0.6, think_ms=2_000, duration_ms=240_000, requests_max=600,
    )  # fmt: skip


def _crowded(rng: Random, config: Config) -> Config:
    """Let everybody wait with something in hand for the next thing: so circles come about, and longer ones."""
    room = replace(
        config.parameters, max_hold_ms=3_600_000, queue_per_resource=256, queue_per_principal=64, queue_total=10_000,
        held_per_principal=4_096, ttl_max_ms=3_600_000,
    )  # fmt: skip
    return config.but(
        parameters=room, agents=AGENTS[: rng.choice([3, 4, 5])], names=LOCKS[: rng.choice([3, 4])],
        set_max=rng.choice([1, 2]), wait_share=rng.choice([0.8, 1.0]), nest_share=0.9, ttl_ms=(5_000, 20_000),
        give_up_ms=20_000, think_ms=50,
    )  # fmt: skip


def _hectic(rng: Random, config: Config) -> Config:
    """Let those who hold and wait be stopped all the time, in every way."""
    faults = {name: COMPANY_FAULTS[name] for name in ("silent", "let_run", "dismiss", "close", "take_over")}
    numbers = replace(
        config.parameters, session_idle_ms=2_000, sessions_per_principal=1_024, held_per_principal=4_096,
        ttl_max_ms=3_600_000,
    )  # fmt: skip
    return config.but(
        parameters=numbers, faults=config.faults | faults | {"remove": 0.5}, operators=OPERATORS[: rng.choice([2, 3])],
        agents=AGENTS[:3], session_share=0.7, wait_share=rng.choice([0.3, 0.8]), nest_share=0.8, think_ms=50,
        ttl_ms=(5_000, 20_000), give_up_ms=20_000, lives_ms=(4_000, 20_000), names=LOCKS[: rng.choice([2, 4])],
    )  # fmt: skip


def _parameters(rng: Random, ttl_ms: tuple[int, int]) -> Parameters:
    """Numbers that are met within a minute: small queues, short windows, quick reservations."""
    return Parameters(
        ttl_min_ms=1_000,
        ttl_max_ms=rng.choice([ttl_ms[1], 3_600_000]),
        sweep_ms=rng.choice([500, 1_000, 3_000]),
        holiday_ms=rng.choice([1_000, 5_000, 30_000]),
        idempotency_ms=rng.choice([3_000, 86_400_000, 86_400_000, 86_400_000]),
        wait_edge_ms=rng.choice([1_000, 10_000]),
        stampede_admitted=rng.choice([1, 3, 8]),
        stampede_reset_ms=rng.choice([2_000, 60_000]),
        max_hold_ms=rng.choice([2_000, 10_000, 3_600_000]),
        poll_ms=rng.choice([1_000, 4_000, 30_000]),
        claim_ms=rng.choice([1_000, 3_000, 10_000]),
        wait_max_ms=rng.choice([40_000, 3_600_000]),
        queue_per_resource=rng.choice([1, 4, 256]),
        queue_per_principal=rng.choice([1, 2, 64]),
        queue_total=rng.choice([4, 10_000]),
        lock_delay_ms=rng.choice([0, 0, 500, 4_000]),
        deadlock_nodes=rng.choice([2, 3, 1_000, 1_000]),
        passes_max=rng.choice([1, 3, 32]),
        reserve_after_ms=rng.choice([1_000, 5_000, 60_000]),
        trust_start=rng.choice([0, 50_000]),
        trust_max=rng.choice([50_500, 100_000]),
        trust_gain_hold_ms=rng.choice([0, 200, 1_000]),
        trust_gain_max=rng.choice([700, 1_000]),
        trust_gain_window_ms=rng.choice([5_000, 3_600_000]),
        rate_per_second=rng.choice([1, 2, 5]),
        rate_burst=rng.choice([3, 10]),
        held_per_principal=rng.choice([2, 4_096, 4_096, 4_096]),
    )


def _names(rng: Random) -> tuple[str, ...]:
    """Few names, so that agents meet; some are sub-trees of others."""
    pool = ["lock:a", "lock:b", "lock:c", "db:orders/1", "db:orders/2", "repo:src/x", "repo:SRC/x", "doc:log"]
    if rng.random() < 0.4:
        pool.append("doc:größe")
    if rng.random() < 0.5:
        pool += ["db:orders/**", "repo:src/**", "lock:**", "repo:**", "db:orders"]
    return tuple(rng.sample(pool, rng.randint(1, 6)))


def _schemes(rng: Random, classes: tuple[str, ...]) -> tuple[dict[str, Any], ...]:
    """Return what the operator sets at first."""
    rows: list[dict[str, Any]] = []
    for name in ("lock", "db", "repo", "doc"):
        if rng.random() < 0.5:
            continue
        row: dict[str, Any] = {"name": name, "class": rng.choice(classes), "isFolding": rng.random() < 0.5}
        row["isUnicode"] = rng.random() < 0.5
        if rng.random() < 0.4:
            row["lockDelayMs"] = rng.choice([0, 700, 5_000])
        if rng.random() < 0.4:
            row["maxHoldMs"] = rng.choice([1_000, 6_000])
        rows.append(row)
    return tuple(rows)
