"""Puts the rooms together, starts them in order, stops them in order.

Start: settings, keys, store, entry 0, whether the ports are free, sequencer, then the door; nothing listens before
decisions can be made. Stop: /readyz says 503, refuse new requests, send parked claims away, stop listening, answer what
is under way, drain the sequencer (commit, sign, keep), close the store. A second signal does not hurry it: the deadline
of the drain does.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TypeVar

from aiohttp import web

from gateway.bearer import BearerDoor, Custody
from gateway.clock import Clock, Clocks
from gateway.config import Settings
from gateway.core.draft import View
from gateway.core.lookup import counter_at
from gateway.core.parameters import Parameters
from gateway.core.record_codec import decode_record
from gateway.core.record_keys import TICKETS_KEY
from gateway.core.records import Agent, LedgerKey, Quota, Session, Ticket
from gateway.core.resource import claims_near
from gateway.core.terms import TICKETS
from gateway.core.waitview import Shelf
from gateway.errors import Fatal, StartError
from gateway.initialise import ENROLLER_FILE, LOOPBACK
from gateway.keyroom import PUBLIC, KeyFolder, PublicFolder, load_signer, warn_of_unpublished
from gateway.ledger.parking import Parking
from gateway.ledger.sequencer import Sequencer
from gateway.news import News
from gateway.retention import Retained
from gateway.ruleroom import engine_for, engine_name
from gateway.rules.apart import Apart
from gateway.rules.engine import Engine
from gateway.selfaudit import audit_itself, check_mark
from gateway.service import Desk, FirstUse, Ledger
from gateway.signer import Signer
from gateway.store.contract import Reading
from gateway.stores import LedgerReader, open_reader, open_store, reaching
from gateway.web.connection import Server
from gateway.web.handlers import routes
from gateway.web.house import JSON, TEXT, House, answer_fields
from gateway.web.limits import Buckets
from gateway.web.metrics import Metrics
from gateway.web.reads import ReadThread
from gateway.web.reads import Shelf as LiveShelf
from gateway.web.reports import is_disputed, log_dispute
from gateway.web.routes import Door
from gateway.web.scenes import Scenes
from gateway.witnessing import Duty, Watch, asking, begin_witnessing, load_witnesses, open_watch, show_witnesses
from keys.files import CUSTODY, load_key
from keys.signing import SigningKey
from verifier.entries import LEAF_BYTES_LARGEST, RULES_VERSION, Leaf, parse_leaf
from verifier.merkle import leaf_hash
from verifier.note import parse_vkey
from verifier.wire import JsonValue, Malformed, parse_canonical

# Python looks for cycles among new objects after every 700 of them. A request makes hundreds that wait for the disk and
# hang in no cycle, so it would look through each several times; with 50,000 that saves 5 % of the CPU for some MiB.
GARBAGE_THRESHOLDS = (50_000, 20, 20)
REPORTS_PER_SECOND = 2  # from one address: nobody has two second histories to show
REPORTS_BURST = 20
ALL_REPORTS_PER_SECOND = 50  # each costs one verification, so all together 0.5 % of the loop's thread
ALL_REPORTS_BURST = 200
PICTURES_PER_SECOND = 50  # for one address, or one key that signed: a picture may have 400 kB
PICTURES_BURST = 200
METRICS_HOST = "127.0.0.1"
POLICY_PATH, POLICY_FORM = "/.well-known/tallystick-policy.txt", "policy.txt"
PUBLISHED: Mapping[str, tuple[str, str]] = {
    "/.well-known/tallystick-keys": (TEXT, "keys.note"),
    "/.well-known/jwks.json": (JSON, "jwks.json"),
    "/.well-known/did.json": (JSON, "did.json"),
}
# By the sequencer's counter: the metric's name and what it counts. A batch is what a client sends, so this is a commit.
FIGURES: Mapping[str, tuple[str, str]] = {
    "batches": ("commits", "Commits, each of one entry or more."),
    "receipts": ("receipts", "Entries that were committed, signed and proven."),
    "replays": ("replays", "Retries that got the stored answer."),
    "refused": ("refused", "Requests that were refused without an entry."),
    "busy": ("busy", "Requests that were sent away because there was too much to do."),
    "recoveries": ("recoveries", "Times the ledger was opened again after a commit of unknown outcome."),
    "abandoned": ("abandoned", "Answers whose client no longer waited."),
    "forgotten": ("forgotten", "Records that were due to be forgotten, and were."),
    "followed": ("followed_batches", "Batches of other nodes that this one followed."),
    "stalls": ("store_stalls", "Times a commit did not return for seconds, so that nothing new was begun."),
    "shared_sessions": ("shared_sessions", "Sessions that were seen to be used by two processes."),
}
PARKED_FIGURES: Mapping[str, str] = {
    "parked": "Claims that were kept waiting.",
    "woken": "Parked claims whose turn came, or whose ticket ended.",
    "lapsed": "Parked claims whose time was over first.",
    "left": "Parked claims whose client went away.",
}
_log = logging.getLogger("tallystick.app")
R = TypeVar("R", Agent, Quota, Session)


@dataclass(slots=True)
class Drain:
    """Whether the gateway is stopping."""

    is_draining: bool = False


@dataclass(frozen=True, slots=True)
class LogTime:
    """The time that answers are dated with: the ledger's, by which signatures are judged, not a wall clock's."""

    sequencer: Sequencer

    def now_ms(self) -> int:
        return self.sequencer.time_ms


@dataclass(slots=True)
class Gateway:
    """A running gateway, as its starter sees it. `url` is where it listens, `metrics_url` empty when that is off."""

    ledger: Ledger
    house: House
    door: Door
    metrics: Metrics
    drain: Drain
    durability: str
    url: str = ""
    metrics_url: str = ""


async def serve(
    folder: Path,
    settings: Settings,
    *,
    is_clock_accepted: bool = False,
    is_manner_accepted: bool = False,
    is_address_told: bool = False,
    on_listening: Callable[[], None] | None = None,
) -> None:
    """Run the gateway of `folder` until SIGTERM or SIGINT, then stop it without losing anything.

    A gateway that decides nothing any more stops by itself, in the same order, and raises Fatal: who started it is to
    start it anew, for only a start finds out how the ledger stands. `is_address_told`: somebody chose the address just
    now, so it may be one that entry 0 does not know. `on_listening` is called once, when clients may come.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with running(
        folder, settings, is_clock_accepted=is_clock_accepted, is_manner_accepted=is_manner_accepted
    ) as gateway:
        fields = {"url": gateway.url, "origin": gateway.ledger.origin, "metrics": gateway.metrics_url}
        _log.info("serving", extra={"fields": fields})
        if is_disputed(gateway.house.sequencer):
            log_dispute("its entry `ledger.disputed` holds a checkpoint")
        if is_address_told:
            _warn_of_address(gateway)
        if on_listening is not None:
            on_listening()
        if gateway.ledger.is_dev and settings.listen_host not in LOOPBACK:
            _log.warning("a throw-away ledger, where any key may act, listens on more than this machine")
        settle()
        sequencer = gateway.house.sequencer
        await _first_of(stop, sequencer.failed)
        _log.info("draining")
    if sequencer.failure is not None:
        _log.critical("stopped by a failure")  # written at once, with all before it, so that the reason comes last
        raise Fatal(f"no decision can be made any more: {sequencer.failure}") from sequencer.failure
    _log.info("stopped")


def _warn_of_address(gateway: Gateway) -> None:
    """Say it when requests that are signed for the address we listen on would all be refused."""
    here = gateway.url.removeprefix("http://")
    if here not in gateway.ledger.authorities:
        names = ", ".join(sorted(gateway.ledger.authorities))
        _log.warning(
            "entry 0 does not name %s: only requests signed for %s are taken; a proxy must pass Host", here, names
        )


async def _first_of(*events: asyncio.Event) -> None:
    """Wait for whichever is set first."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


def settle() -> None:
    """Tell the collector, once per process, that everything made so far stays: it need never look there again."""
    gc.collect()
    gc.freeze()


@asynccontextmanager
async def running(
    folder: Path,
    settings: Settings,
    clock: Clocks | None = None,
    *,
    is_clock_accepted: bool = False,
    is_manner_accepted: bool = False,
) -> AsyncIterator[Gateway]:
    """Yield a gateway that answers; leaving the block stops it in order. StartError and StoreOwned before it starts."""
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    clock = clock or Clock()
    drain = Drain()
    check_mark(folder)
    async with AsyncExitStack() as stack:
        store = open_store(folder, settings, engine_name(), is_manner_accepted=is_manner_accepted)
        stack.callback(store.close)
        with reaching(settings), closing(open_reader(folder, settings)) as reader:
            ledger = open_ledger(reader)
            signer = signer_of(folder, ledger, reader)
            public = PublicFolder(folder, ledger.root, ledger.origin, ledger.genesis)
            keys = KeyFolder(folder, signer)
            witnesses = load_witnesses(folder, ledger, public.document)
            watch = await open_watch(
                stack, witnesses, settings, reader, signer, public.document, clock, is_clock_accepted=is_clock_accepted
            )
            sequencer = Sequencer(
                store,
                signer,
                clock,
                ledger.parameters,
                origin=ledger.origin,
                genesis=ledger.genesis,
                is_clock_accepted=is_clock_accepted,
                parking=Parking(max(1, settings.connections_max // 2)),
                evaluate=engine_for(reader),
                follow_ms=settings.follow_ms,
                has_key=keys.has,
                ask_witnesses=asking(watch, settings, signer, lambda: public.document),
            )
        check_ports(settings)
        with reaching(settings):
            await sequencer.start()  # one that fails has nothing to stop, and its own words must be the last
        stack.push_async_callback(sequencer.stop)
        warn_of_unpublished(public.document, signer.lines, folder)
        reads = ReadThread(
            lambda: open_reader(folder, settings, lambda: (sequencer.confirmed.size, sequencer.confirmed.root))
        )
        stack.push_async_callback(reads.close)
        duty = Duty(stack.enter_context(closing(open_reader(folder, settings))), clock) if store.is_shared else None
        await begin_witnessing(stack, watch, settings, ledger, sequencer, signer, reads, clock, duty)
        news = News(sequencer, is_shared=store.is_shared)
        house = _house(folder, settings, ledger, sequencer, news, signer, keys, public, watch, reads, drain)
        metrics = Metrics()
        show_witnesses(metrics, watch)
        door = Door(routes(house), clock=clock, metrics=metrics, handler_seconds=settings.handler_seconds)
        gateway = Gateway(ledger, house, door, metrics, drain, store.durability)
        await _open_doors(stack, gateway, settings)
        if settings.self_audit:
            audit_itself(stack, folder, sequencer, metrics)
        yield gateway


def open_ledger(reader: Reading) -> Ledger:
    """Return what entry 0 of a store says; StartError when there is none or it is not ours to read."""
    entries = reader.entries(0, 1)
    if not entries:
        raise StartError("the ledger has no entry 0, so it was never opened; make a new one with `tallystick init`")
    _check_rules(entries[0].leaf)
    leaf = parse_leaf(entries[0].leaf)
    parameters = leaf.value["parameters"]
    assert isinstance(parameters, dict), "the entry table makes parameters an object"
    return Ledger(
        origin=leaf.origin,
        genesis=leaf_hash(entries[0].leaf),
        authorities=frozenset(_texts(leaf, "authorities")),
        operators=_texts(leaf, "operators"),
        enroller=str(leaf.value["enroller"]),
        is_public=leaf.value["isPublic"] is True,
        is_dev=leaf.value["isDev"] is True,
        parameters=Parameters.from_members(parameters),
        root=parse_vkey(leaf.text("root")),
    )


def _check_rules(opening: bytes) -> None:
    """A ledger keeps the rules it was opened with, because an auditor decides everything again by them."""
    rules = parse_canonical(opening, bytes_max=LEAF_BYTES_LARGEST).get("rules")
    if rules != RULES_VERSION:
        raise StartError(
            f"this ledger was opened with rules {rules}, and this gateway decides by rules {RULES_VERSION}; "
            "make a new ledger beside it with `tallystick init --data NEW`, or serve it with the version that made it"
        )


def signer_of(folder: Path, ledger: Ledger, reader: LedgerReader) -> Signer:
    """Return the signer of this ledger's keys; StartError when one that is in force by its records is not there.

    That the records are true is found out when the ledger is opened; here they name what is missing.
    """
    signer = load_signer(folder, ledger.origin)
    try:
        records = [decode_record(key, value) for key, value in reader.records(("key/",))]
    except Malformed:
        return signer
    signer.heed(record for record in records if isinstance(record, LedgerKey))
    for line in signer.missing():
        raise StartError(
            f"{folder}/keys has no private half of the {line.purpose} key {line.key.vkey}, which is in force; bring "
            "back its file and passphrase, or the folder `keys` of this ledger"
        )
    return signer


def _house(
    folder: Path,
    settings: Settings,
    ledger: Ledger,
    sequencer: Sequencer,
    news: News,
    signer: Signer,
    keys: KeyFolder,
    public: PublicFolder,
    watch: Watch,
    reads: ReadThread,
    drain: Drain,
) -> House:
    parameters = ledger.parameters
    limiter = Buckets(
        rate_per_s=parameters.rate_per_second, burst=parameters.rate_burst, clock=monotonic, policy="decisions"
    )
    evaluator = sequencer.evaluator
    reviewer = Apart(evaluator) if isinstance(evaluator, Engine) else None
    desk = Desk(sequencer, ledger, limiter, _first_use(folder, ledger), keys, news, reviewer)
    custody = Custody(folder / CUSTODY)
    bearer = BearerDoor(sequencer, ledger, desk, enroller=_enroller(folder, ledger), custody=custody, news=news)
    published = {path: (kind, public.form(name)) for path, (kind, name) in PUBLISHED.items()}
    published[POLICY_PATH] = (TEXT, watch.policy(public.form(POLICY_FORM)))
    shelf = LiveShelf(sequencer)
    return House(
        is_denied=Retained(folder / PUBLIC, ledger.genesis).denies,
        ledger=ledger,
        desk=desk,
        bearer=bearer,
        sequencer=sequencer,
        news=news,
        signer=signer,
        clock=LogTime(sequencer),
        newest_witnessed=watch.newest,
        published=published,
        answer_fields=answer_fields(parameters),
        reads=reads,
        body_seconds=settings.body_seconds,
        reports=Buckets(rate_per_s=REPORTS_PER_SECOND, burst=REPORTS_BURST, clock=monotonic),
        all_reports=Buckets(rate_per_s=ALL_REPORTS_PER_SECOND, burst=ALL_REPORTS_BURST, clock=monotonic),
        shelf=shelf,
        scenes=Scenes(shelf, sequencer, parameters),
        pictures=Buckets(rate_per_s=PICTURES_PER_SECOND, burst=PICTURES_BURST, clock=monotonic),
        is_draining=lambda: drain.is_draining,
    )


def _enroller(folder: Path, ledger: Ledger) -> SigningKey:
    """Return the key that enrols in the name of API keys; StartError unless it is the one that entry 0 names."""
    enroller = load_key(folder / ENROLLER_FILE, purpose="enroller")
    if enroller.did != ledger.enroller:
        raise StartError(f"{folder / ENROLLER_FILE} is not the key that entry 0 names; restore the folder `keys`")
    return enroller


def _first_use(folder: Path, ledger: Ledger) -> FirstUse | None:
    if not ledger.is_dev:
        return None
    operator = load_key(folder / "operator" / "agent.key", purpose="operator")
    if operator.did not in ledger.operators:
        raise StartError(f"{folder}/operator holds a key that entry 0 does not name as operator")
    return FirstUse(operator, ledger)


async def _open_doors(stack: AsyncExitStack, gateway: Gateway, settings: Settings) -> None:
    """Start listening; on the way out announce the drain first, then stop listening, then wait for the handlers."""
    _show_figures(gateway)
    gateway.metrics_url = await _open_metrics(stack, gateway.metrics, settings.metrics_port)
    door, clock = gateway.door, gateway.house.clock
    server = Server(door, error_reply=door.error_reply, settings=settings, clock=clock)
    runner = web.ServerRunner(server, shutdown_timeout=settings.drain_seconds)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    site = web.TCPSite(runner, settings.listen_host, settings.listen_port)
    try:
        await site.start()
    except OSError as error:
        raise listen_error(error, settings) from error
    parking = gateway.house.sequencer.parking
    stack.push_async_callback(_announce, gateway.drain, parking, settings.drain_delay_seconds)
    host, port = runner.addresses[0][:2]
    gateway.url = f"http://{host}:{port}"


def check_ports(settings: Settings) -> None:
    """StartError when this gateway could not listen where it should, found out before anything is written."""
    with ExitStack() as held:
        try:
            _hold(held, settings.listen_host, settings.listen_port)
        except OSError as error:
            raise listen_error(error, settings) from error
        try:
            _hold(held, METRICS_HOST, settings.metrics_port)
        except OSError as error:
            raise metrics_error(error, settings.metrics_port) from error


def _hold(held: ExitStack, host: str, port: int) -> None:
    """Listen on all addresses of a name until `held` is closed; on none for port 0, which is always free."""
    for family, _, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM) if port else ():
        held.enter_context(socket.create_server(address, family=family))


def listen_error(error: OSError, settings: Settings) -> StartError:
    """Return what to tell an operator whose gateway can't listen where it should."""
    if error.errno == errno.EADDRINUSE:
        return StartError(f"port {settings.listen_port} is in use; choose another with --listen HOST:PORT")
    return StartError(
        f"can't listen on {settings.listen_host}:{settings.listen_port} ({error.strerror}); "
        "choose an address of this machine with --listen HOST:PORT"
    )


async def _open_metrics(stack: AsyncExitStack, metrics: Metrics, port: int) -> str:
    """Serve the metrics on loopback; 0 means none."""
    if port == 0:
        return ""
    runner = web.ServerRunner(web.Server(metrics.handle))
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    try:
        await web.TCPSite(runner, METRICS_HOST, port).start()
    except OSError as error:
        raise metrics_error(error, port) from error
    return f"http://{METRICS_HOST}:{port}/metrics"


def metrics_error(error: OSError, port: int) -> StartError:
    """Return what to tell an operator whose metrics can't be served."""
    why = "is in use" if error.errno == errno.EADDRINUSE else f"can't be opened ({error.strerror})"
    return StartError(f"metrics port {port} {why}; choose another with --metrics-port N, or 0 for none")


async def _announce(drain: Drain, parking: Parking, delay_seconds: float) -> None:
    """Turn /readyz to 503, send parked claims away, and go on listening for as long as a balancer needs to notice."""
    drain.is_draining = True
    parking.close()
    await asyncio.sleep(delay_seconds)


def _show_figures(gateway: Gateway) -> None:
    """Offer what the sequencer counts; read at each scrape, so deciding pays nothing for it."""
    sequencer, metrics, durability = gateway.house.sequencer, gateway.metrics, gateway.durability
    metrics.gauge("ready", "1 while decisions are made.", lambda: float(sequencer.is_ready))
    metrics.gauge("store_unfit", "1 while the database's settings, or a missing key, stop all decisions.",
                  lambda: float(sequencer.unfit is not None))  # fmt: skip
    metrics.gauge(
        "store_stalled", "1 while a commit has not returned for seconds.", lambda: float(sequencer.is_stalled)
    )
    metrics.gauge("store_unreachable", "1 while the database does not answer at all.", lambda: float(sequencer.is_away))
    text = "For how long the database has not answered what it was asked last; 0 while nothing is asked."
    metrics.gauge("commit_pending_seconds", text, lambda: sequencer.pending_s)
    metrics.labelled_gauge("durability", "What a commit survives.", "durability", lambda: {durability: 1.0})
    metrics.counter("news_looks", "Times that other nodes' entries were looked for because somebody was unknown.",
                    lambda: gateway.house.news.looks)  # fmt: skip
    metrics.gauge("disputed", "1 when a second history was proven.", lambda: float(is_disputed(sequencer)))
    metrics.gauge("ledger_size", "Entries covered by the newest checkpoint.", lambda: sequencer.confirmed.size)
    metrics.gauge("queue_depth", "Requests that wait to be decided.", lambda: sequencer.queue_depth)
    metrics.gauge("tickets", "Tickets in line for resources.", lambda: counter_at(sequencer.view, TICKETS_KEY))
    metrics.gauge("tickets_offered", "Tickets whose turn has come.", lambda: offered_count(sequencer.view))
    shelf = gateway.house.shelf
    metrics.gauge("sessions", "Sessions that are open.", lambda: session_count(shelf))
    metrics.gauge("trial_agents", "Trial agents in force.", lambda: trial_count(shelf))
    metrics.gauge("trial_decisions", "Entries of trial agents.", lambda: trial_used(shelf))
    metrics.gauge("parked", "Claims that wait for their turn.", lambda: len(sequencer.parking))
    for name, text in PARKED_FIGURES.items():
        metrics.counter(f"parked_{name}", text, partial(getattr, sequencer.parking.tally, name))
    metrics.labelled("entries", "Entries written since the start.", "type", lambda: sequencer.entries)
    metrics.counter("clock_alarms", "Times the wall clock ran ahead.", lambda: sequencer.clock_alarms)
    if isinstance(engine := sequencer.evaluator, Engine):
        metrics.counter("rules_errors", "Times that rules could not be evaluated.", lambda: engine.failed_count)
    for counter, (name, text) in FIGURES.items():
        metrics.counter(name, text, partial(getattr, sequencer.counters, counter))


def offered_count(view: View) -> int:
    """Return how many tickets may be claimed."""
    tickets = (claim for claim in claims_near(view, TICKETS) if isinstance(claim, Ticket))
    return sum(ticket.claim_by_ms is not None for ticket in tickets)


def session_count(shelf: Shelf) -> int:
    """Return how many sessions are open."""
    return sum(session.is_open for session in _all(shelf, Session))


def trial_used(shelf: Shelf) -> int:
    """Return how many entries trial agents have caused."""
    return sum(quota.used for quota in _all(shelf, Quota))


def trial_count(shelf: Shelf) -> int:
    """Return how many agents were enrolled by a trial key and not removed."""
    return sum(agent.trial_until_ms is not None and agent.removed_seq is None for agent in _all(shelf, Agent))


def _all(shelf: Shelf, kind: type[R]) -> list[R]:
    """Return the records of one kind, which all lie below its name; for scrapes, which are rare."""
    return [record for record in shelf.scan(f"{kind.__name__.lower()}/") if isinstance(record, kind)]


def _texts(leaf: Leaf, name: str) -> tuple[str, ...]:
    values: JsonValue = leaf.value[name]
    assert isinstance(values, list), f"the entry table makes {name} a list"
    return tuple(str(value) for value in values)
