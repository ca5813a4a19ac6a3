"""Settings of one gateway: the file `tallystick.json` in the data directory.

Only what may differ between two gateways of one ledger is a setting. Everything a decision depends on (origin,
authorities, parameters, operators) is in entry 0 of the ledger, where an auditor reads it too, and not repeated here.
The table below is the single source: the loader, `docs/settings.md` and the messages are read from it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from verifier.entries import (
    GIVE_UP_MS_MAX,
    GIVE_UP_MS_MIN,
    HOLD_MS_MAX,
    LOCK_DELAY_MS_MAX,
    PARAMETER_DEFAULTS,
    SKEW_MS,
    TRUST_CHANGE_MAX,
    TTL_MS_DEFAULT,
    TTL_MS_MAX,
    TTL_MS_MIN,
)

SETTINGS_FILE = "tallystick.json"
SETTINGS_BYTES_MAX = 65_536
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
DURABILITIES = ("replicated", "local")  # of a database; a file in the data directory is always "file"
STORE_BYTES_MAX = 1_024
_SCHEMES = ("postgresql", "postgres")


class SettingError(Exception):
    """A setting that can't be used; the text names the file, the setting, its bound and what to do."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One row: `is_allowed` is the test behind the words of `bound`."""

    name: str
    attribute: str
    meaning: str
    unit: str
    default: int | str
    bound: str
    is_allowed: Callable[[object], bool]
    fault: Callable[[object], str] | None = None
    """Says what is wrong with a value where the bound does not, and never repeats what may be secret."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings in force; one attribute per row of SETTINGS."""

    listen_host: str = "127.0.0.1"
    listen_port: int = 8420
    metrics_port: int = 9464
    connections_max: int = 1024
    keepalive_seconds: int = 20
    body_seconds: int = 5
    handler_seconds: int = 30
    drain_seconds: int = 20
    drain_delay_seconds: int = 0
    log_level: str = "INFO"
    witness_refresh_ms: int = 60_000
    witness_entry_ms: int = 10_000
    witness_timeout_ms: int = 5_000
    witness_required: bool = False
    self_audit: bool = True
    store: str = ""
    durability: str = "replicated"
    follow_ms: int = 500


@dataclass(frozen=True, slots=True)
class ParameterBound:
    """One parameter of entry 0: what it means and the values `init` writes, which every verifier can follow."""

    name: str
    meaning: str
    unit: str
    low: int
    high: int

    @property
    def bound(self) -> str:
        """The bound in words."""
        return f"{self.low:,}" if self.low == self.high else f"{self.low:,} to {self.high:,}"


def _between(low: int, high: int) -> Callable[[object], bool]:
    return lambda value: type(value) is int and low <= value <= high


def _is_host(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 253 and value.isascii() and " " not in value


def store_fault(value: object) -> str:
    """Return what is wrong with a setting `store`, "" when nothing is. What it says never repeats a password."""
    if value == "":
        return ""
    if not isinstance(value, str) or len(value) > STORE_BYTES_MAX or not value.isascii() or not value.isprintable():
        return f"it is a text of at most {STORE_BYTES_MAX} printable ASCII characters"
    try:
        url = urlsplit(value)
    except ValueError:
        return "it can't be read as a URL"
    if url.scheme not in _SCHEMES or not value.startswith(f"{url.scheme}://"):
        return "it does not begin with postgresql://"
    user = url.netloc.rpartition("@")[0]  # libpq takes several hosts, which urllib does not split
    if ":" in user or "password" in dict(parse_qsl(url.query, keep_blank_values=True)):
        return "it has a password in it, which others could read; PGPASSFILE or PGPASSWORD gives it to the gateway"
    return (
        "" if url.path.strip("/") and not url.fragment else "it names no database: postgresql://USER@HOST:PORT/DATABASE"
    )


# fmt: off
SETTINGS: tuple[Setting, ...] = (
    Setting("listenHost", "listen_host", "Address the gateway listens on; TLS belongs to a proxy in front of it.",
            "address", "127.0.0.1", "1 to 253 ASCII characters without space", _is_host),
    Setting("listenPort", "listen_port", "Port the gateway listens on; 0 takes a free one.",
            "port", 8420, "0 to 65535", _between(0, 65_535)),
    Setting("metricsPort", "metrics_port", "Loopback port of the Prometheus metrics; 0 turns them off.",
            "port", 9464, "0 to 65535", _between(0, 65_535)),
    Setting("connectionsMax", "connections_max",
            "Open connections; one more is closed at once. Claims may wait on half of them.",
            "connections", 1024, "1 to 65536", _between(1, 65_536)),
    Setting("keepaliveSeconds", "keepalive_seconds",
            "How long a silent connection, or one that has not finished its header, stays open.",
            "s", 20, "1 to 300", _between(1, 300)),
    Setting("bodySeconds", "body_seconds", "How long a body may take to arrive after its header.",
            "s", 5, "1 to 60", _between(1, 60)),
    Setting("handlerSeconds", "handler_seconds", "How long one request may take in all, beside what a claim waits.",
            "s", 30, "1 to 300", _between(1, 300)),
    Setting("drainSeconds", "drain_seconds", "How long a stopping gateway waits for requests that are being answered.",
            "s", 20, "1 to 300", _between(1, 300)),
    Setting("drainDelaySeconds", "drain_delay_seconds",
            "How long a stopping gateway keeps listening with /readyz at 503, so that a balancer looks away first.",
            "s", 0, "0 to 60", _between(0, 60)),
    Setting("logLevel", "log_level", "The least severe log line that is written.",
            "level", "INFO", " | ".join(LOG_LEVELS), lambda value: value in LOG_LEVELS),
    Setting("witnessRefreshMs", "witness_refresh_ms",
            "How often witnesses are asked to cosign a ledger in which nothing happens.",
            "ms", 60_000, "1,000 to 86,400,000", _between(1_000, 86_400_000)),
    Setting("witnessEntryMs", "witness_entry_ms",
            "How often at most a witnessed checkpoint is written into the ledger; only if something else was.",
            "ms", 10_000, "1,000 to 3,600,000", _between(1_000, 3_600_000)),
    Setting("witnessTimeoutMs", "witness_timeout_ms", "How long a witness may take for one answer.",
            "ms", 5_000, "100 to 60,000", _between(100, 60_000)),
    Setting("witnessRequired", "witness_required",
            "Whether a start is refused when too few witnesses say what they have seen of this ledger.",
            "yes or no", False, "true | false", lambda value: type(value) is bool),
    Setting("selfAudit", "self_audit",
            "Whether the gateway audits its own ledger beside its work, and stops granting when it finds damage.",
            "yes or no", True, "true | false", lambda value: type(value) is bool),
    Setting("store", "store",
            "Where the ledger is kept: a PostgreSQL database, or, when empty, the file in the data directory.",
            "URL", "", "empty, or postgresql://USER@HOST:PORT/DATABASE without a password",
            lambda value: not store_fault(value), store_fault),
    Setting("durability", "durability",
            "What a commit in that database survives: the loss of its server too, or of power alone.",
            "word", "replicated", " | ".join(DURABILITIES), lambda value: value in DURABILITIES),
    Setting("followMs", "follow_ms",
            "How often this node looks for what other nodes wrote into that database.",
            "ms", 500, "50 to 10,000", _between(50, 10_000)),
)
# fmt: on
# Verifiers know one skew (verifier/entries.py), whatever entry 0 states, no lease or wait outside 1 s to 1 h, and no
# change of trust above 100,000.
# fmt: off
PARAMETERS: tuple[ParameterBound, ...] = (
    ParameterBound("ttlMinMs", "Shortest life a lease may ask for.", "ms", TTL_MS_MIN, TTL_MS_DEFAULT),
    ParameterBound("ttlMaxMs", "Longest life a lease may ask for.", "ms", TTL_MS_DEFAULT, TTL_MS_MAX),
    ParameterBound("sweepMs", "How often ended leases are looked for.", "ms", 10, 60_000),
    ParameterBound("holidayMs", "For how long at most no lease ends after an outage.", "ms", 0, 3_600_000),
    ParameterBound("skewMs", "How far a signature's window is widened on both sides.", "ms", SKEW_MS, SKEW_MS),
    ParameterBound("idempotencyMs", "For how long a repeated request gets its first answer.", "ms",
                   3_600_000, 604_800_000),
    ParameterBound("waitEdgeMs", "For how long a refused request counts as waiting.", "ms", 1_000, 600_000),
    ParameterBound("stampedeBaseMs", "Wait advised at the first refusal, doubled at each further one.", "ms",
                   1, 60_000),
    ParameterBound("stampedeMaxMs", "Longest wait advised; not below stampedeBaseMs.", "ms", 1, 600_000),
    ParameterBound("stampedeAdmitted", "Refusals of one agent with the short wait as advice; then the lease's rest.",
                   "refusals", 1, 1_000),
    ParameterBound("stampedeResetMs", "Time without a refusal that clears this count.", "ms", 1_000, 86_400_000),
    ParameterBound("maxHoldMs", "How long one lease may be renewed while others wait; not below ttlMaxMs.", "ms",
                   TTL_MS_DEFAULT, HOLD_MS_MAX),
    ParameterBound("ratePerSecond", "Requests an agent and its sessions may make, lasting.", "requests/s",
                   1, 1_000_000),
    ParameterBound("rateBurst", "Requests an agent and its sessions may make at once.", "requests", 1, 1_000_000),
    ParameterBound("pollMs", "How long a ticket lives without a claim; a third of it is the longest answer.", "ms",
                   3_000, 600_000),
    ParameterBound("claimMs", "How long an offered ticket may be claimed at least.", "ms", 1_000, 600_000),
    ParameterBound("waitMaxMs", "Longest time to stand in line that a request may ask for.", "ms",
                   GIVE_UP_MS_MIN, GIVE_UP_MS_MAX),
    ParameterBound("queuePerResource",
                   "Tickets in line for one name, shared by the operators: each has its part, from four on a quarter.",
                   "tickets", 1, 4_096),
    ParameterBound("queuePerPrincipal", "Tickets of one agent.", "tickets", 1, 4_096),
    ParameterBound("queueTotal", "Tickets in all, shared by the operators in the same way.", "tickets", 1, 100_000),
    ParameterBound("lockDelayMs", "How long others are kept out after a lease ran out or was broken.", "ms",
                   0, LOCK_DELAY_MS_MAX),
    ParameterBound("deadlockNodes", "Actors that one search for a deadlock looks at.", "actors", 2, 10_000),
    ParameterBound("passesMax", "How often others may go before a ticket for several names until it may reserve.",
                   "times", 1, 10_000),
    ParameterBound("reserveAfterMs", "How long such a ticket may be first in line until it may reserve.", "ms",
                   1_000, 3_600_000),
    ParameterBound("trustStart", "Trust of an agent that has done nothing; not above trustMax.", "1/1000 points",
                   0, TRUST_CHANGE_MAX),
    ParameterBound("trustMax", "Most trust there is; the least is 0.", "1/1000 points", 1, TRUST_CHANGE_MAX),
    ParameterBound("trustGain", "Trust for a lease given back.", "1/1000 points", 0, TRUST_CHANGE_MAX),
    ParameterBound("trustGainHoldMs", "How long a lease must have been held for that.", "ms", 0, 86_400_000),
    ParameterBound("trustGainMax", "Most trust for leases given back within one window.", "1/1000 points",
                   0, TRUST_CHANGE_MAX),
    ParameterBound("trustGainWindowMs", "How long such a window lasts from its first gain.", "ms",
                   1_000, 2_592_000_000),
    ParameterBound("trustLoss", "Trust lost by a lease that ran out.", "1/1000 points", 0, TRUST_CHANGE_MAX),
    ParameterBound("heldPerPrincipal", "Names that leases of one agent, and delays after them, may have.", "names",
                   1, 65_536),
    ParameterBound("sessionIdleMs", "How long a session lives without an entry of its own.", "ms", 10_000, 3_600_000),
    ParameterBound("sessionsPerPrincipal", "Open sessions of one agent; 16 times as many are remembered.", "sessions",
                   1, 65_536),
    ParameterBound("trialDecisions", "Entries that a trial agent may cause in all.", "entries", 1, 10_000),
    ParameterBound("trialMs", "How long a trial lasts from the entry that enrolled its agent.", "ms",
                   60_000, 2_592_000_000),
    ParameterBound("trialTtlMaxMs", "Longest life that a trial agent's lease may ask for; not below ttlMinMs.", "ms",
                   TTL_MS_MIN, TTL_MS_MAX),
    ParameterBound("witnessMs", "Within what time every entry is witnessed, where the operator has witnesses.", "ms",
                   1_000, 86_400_000),
    ParameterBound("admissionMs", "How long an admission may be used at most.", "ms", 1_000, 3_600_000),
    ParameterBound("asksPerPrincipal", "Requests for approval of one agent that stand at once.", "requests",
                   1, 4_096),
)
# fmt: on
_NOT_BELOW = (
    ("stampedeMaxMs", "stampedeBaseMs"),
    ("maxHoldMs", "ttlMaxMs"),
    ("trustMax", "trustStart"),
    ("trialTtlMaxMs", "ttlMinMs"),
)
_BY_NAME: Mapping[str, Setting] = {row.name: row for row in SETTINGS}


def settings_from(values: Mapping[str, object], where: str = SETTINGS_FILE) -> Settings:
    """Return the settings named in `values`, defaults for the rest; SettingError names the first bad one."""
    chosen: dict[str, object] = {}
    for name, value in values.items():
        row = _BY_NAME.get(name)
        if row is None:
            raise SettingError(f"{where}: there is no setting {name!r}; known are {', '.join(sorted(_BY_NAME))}")
        if not row.is_allowed(value):
            found = f"found {_shown(value)}" if row.fault is None else row.fault(value)
            raise SettingError(f"{where}: setting {name} must be {row.bound} ({row.unit}), {found}")
        chosen[row.attribute] = value
    return Settings(**chosen)  # type: ignore[arg-type]  # is_allowed has just checked each value


def check_parameters(members: Mapping[str, int]) -> None:
    """SettingError unless entry 0 may state these numbers; it names the first bad one, its bound and what came."""
    for row in PARAMETERS:
        number = members[row.name]
        if not row.low <= number <= row.high:
            raise SettingError(f"--parameter {row.name} must be {row.bound} ({row.unit}), found {_shown(number)}")
    for name, other in _NOT_BELOW:
        if members[name] < members[other]:
            raise SettingError(
                f"--parameter {name} must not be below {other}, found {members[name]:,} with {other} {members[other]:,}"
            )


def load_settings(folder: Path) -> Settings:
    """Return the settings of the data directory `folder`; SettingError when the file is missing or wrong."""
    path = folder / SETTINGS_FILE
    try:
        with path.open("rb") as file:
            raw = file.read(SETTINGS_BYTES_MAX + 1)
    except FileNotFoundError:
        raise SettingError(f"{path} does not exist; `tallystick init --data {folder}` makes a ledger there") from None
    except OSError as error:
        raise SettingError(f"{path} can't be read: {error.strerror}") from error
    return settings_from(_parsed(raw, path), str(path))


def save_settings(folder: Path, settings: Settings) -> None:
    """Write every setting, defaults included, so that the file shows what can be changed; refuses an existing file."""
    values = {row.name: getattr(settings, row.attribute) for row in SETTINGS}
    descriptor = os.open(folder / SETTINGS_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(json.dumps(values, indent=2) + "\n")


def settings_table() -> str:
    """Return the settings as the Markdown table of docs/settings.md (a test compares the two)."""
    lines = ["| setting | meaning | unit | default | bound |", "| --- | --- | --- | --- | --- |"]
    lines += [
        f"| `{row.name}` | {row.meaning} | {row.unit} | {_spelled(row.default)} | {row.bound.replace('|', 'or')} |"
        for row in SETTINGS
    ]
    return "\n".join(lines) + "\n"


def parameters_table() -> str:
    """Return the parameters as the Markdown table of docs/settings.md (a test compares the two)."""
    lines = ["| parameter | meaning | unit | default | bound |", "| --- | --- | --- | --- | --- |"]
    lines += [
        f"| `{row.name}` | {row.meaning} | {row.unit} | {PARAMETER_DEFAULTS[row.name]:,} | {row.bound} |"
        for row in PARAMETERS
    ]
    return "\n".join(lines) + "\n"


def _spelled(default: int | str) -> str:
    """Return a default as the file spells it, without the quotes around a text."""
    return "empty" if default == "" else f"`{json.dumps(default)}`".replace('"', "")


def _parsed(raw: bytes, path: Path) -> dict[str, object]:
    if len(raw) > SETTINGS_BYTES_MAX:
        raise SettingError(f"{path} is longer than {SETTINGS_BYTES_MAX} bytes")
    try:
        values = json.loads(raw, object_pairs_hook=_no_duplicates)
    except ValueError as error:
        raise SettingError(f"{path} is not a JSON object with each name once: {error}") from error
    if not isinstance(values, dict):
        raise SettingError(f"{path} must hold one JSON object")
    return values


def _no_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("a name stands twice")
    return values


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"a value of {len(text)} characters"
