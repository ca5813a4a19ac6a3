"""The proxy itself: each fault is exactly that fault, and everything else passes unchanged."""

import threading
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pg.frames import Frames, is_begin, is_commit, is_committed
from tests.pg.proxy import Fault, Proxy
from tests.pg.server import fresh_database, shared_server

pytestmark = pytest.mark.postgres


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with Proxy(shared_server().port) as proxy:
        yield proxy


@pytest.fixture
def database() -> Iterator[str]:
    """The name of a database with a table `l`."""
    with fresh_database() as url:
        name = url.rpartition("/")[2]
        shared_server().sql("create table l (i int)", database=name)
        yield name


def through(proxy: Proxy, database: str) -> "psycopg.Connection[tuple[object, ...]]":
    return psycopg.connect(shared_server().dsn(database, port=str(proxy.port)))


def in_thread(call: Callable[[], object]) -> threading.Thread:
    """Make a call that ends in the loss of its connection, beside the scene."""

    def run() -> None:
        with pytest.raises(psycopg.OperationalError):
            call()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def rows(database: str) -> object:
    return shared_server().sql("select count(*) from l", database=database)[0][0]


def settled_rows(database: str) -> object:
    """The count once no other session has anything open: a backend whose client left still ends its commit."""
    busy = "select 1 from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    deadline_s = time.monotonic() + 10
    while shared_server().sql(busy, database=database):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    return rows(database)


def test_what_passes_is_unchanged(proxy: Proxy, database: str) -> None:
    with through(proxy, database) as connection:
        connection.execute("insert into l values (1)")
        with connection.pipeline():
            connection.execute("insert into l values (%s)", (2,))
            connection.commit()
        assert connection.execute("select repeat('x', 300000)").fetchone() == ("x" * 300_000,)
    assert rows(database) == 2 and not proxy.struck.is_set()


@pytest.mark.parametrize(
    ("fault", "kept"), [(Fault.LOSE_ACK, 1), (Fault.CUT_AFTER_SENT, 1), (Fault.CUT_BEFORE_SENT, 0)]
)
@pytest.mark.parametrize("is_pipelined", [False, True])
def test_a_fault_strikes_at_commit_and_the_client_knows_nothing(
    proxy: Proxy, database: str, fault: Fault, kept: int, is_pipelined: bool
) -> None:
    connection = through(proxy, database)
    struck = proxy.strike(fault, about=b"insert")
    with pytest.raises(psycopg.OperationalError):
        if is_pipelined:
            with connection.pipeline():
                connection.execute("insert into l values (1)")
                connection.commit()
        else:
            connection.execute("insert into l values (1)")
            connection.commit()
    assert struck.is_set() and settled_rows(database) == kept


def test_a_swallowed_acknowledgement_leaves_the_client_waiting(proxy: Proxy, database: str) -> None:
    connection = through(proxy, database)
    connection.execute("insert into l values (1)")
    struck = proxy.strike(Fault.SWALLOW_ACK)
    thread = in_thread(connection.commit)
    assert struck.wait(10) and rows(database) == 1
    thread.join(0.3)
    assert thread.is_alive()
    proxy.cut()
    thread.join(10)
    assert not thread.is_alive()


def test_a_fault_is_for_the_transaction_that_is_meant_and_strikes_once(proxy: Proxy, database: str) -> None:
    proxy.strike(Fault.LOSE_ACK, about=b"values (7)")
    with through(proxy, database) as connection:
        connection.execute("insert into l values (1)")
        connection.commit()
        assert not proxy.struck.is_set()
        connection.execute("insert into l values (7)")
        with pytest.raises(psycopg.OperationalError):
            connection.commit()
    with through(proxy, database) as connection:
        connection.execute("insert into l values (7)")
    assert rows(database) == 3


def test_a_half_open_wire_swallows_and_new_ones_work_after_the_thaw(proxy: Proxy, database: str) -> None:
    old = through(proxy, database)
    proxy.freeze()
    thread = in_thread(lambda: old.execute("select 1"))
    with pytest.raises(psycopg.OperationalError, match="timeout"):
        psycopg.connect(shared_server().dsn(database, port=str(proxy.port), connect_timeout="2"))
    proxy.thaw()
    with through(proxy, database) as connection:
        assert connection.execute("select 1").fetchone() == (1,)
    assert thread.is_alive(), "the old one hears nothing, not even an end"
    proxy.cut()
    thread.join(10)
    assert not thread.is_alive()


def test_a_slow_wire_is_slow(proxy: Proxy, database: str) -> None:
    with through(proxy, database) as connection:
        proxy.delay_seconds = 0.1
        begun_s = time.monotonic()
        connection.execute("select 1")
        assert time.monotonic() - begun_s >= 0.2


def test_an_ssl_question_is_answered_by_one_byte(proxy: Proxy, database: str) -> None:
    with psycopg.connect(shared_server().dsn(database, port=str(proxy.port), sslmode="prefer")) as connection:
        assert connection.execute("select 1").fetchone() == (1,)


OPENING = (8).to_bytes(4) + (80_877_103).to_bytes(4)
STARTUP = (12).to_bytes(4) + (196_608).to_bytes(4) + b"u\0\0\0"
QUERY = b"Q" + (11).to_bytes(4) + b"commit\0"
PARSE = b"P" + (15).to_bytes(4) + b"s1\0COMMIT\0\0"


@given(st.lists(st.integers(1, 12), min_size=1, max_size=40))
def test_messages_are_cut_alike_however_the_bytes_come(sizes: list[int]) -> None:
    stream, found, frames = OPENING + STARTUP + QUERY + PARSE, [], Frames(is_client=True)
    for size in [*sizes, len(stream)]:
        found += list(frames.feed(stream[:size]))
        stream = stream[size:]
    assert found == [OPENING, STARTUP, QUERY, PARSE]


def test_a_commit_is_told_from_what_is_none() -> None:
    assert is_commit(QUERY) and is_commit(PARSE)
    assert not is_commit(b"Q" + (12).to_bytes(4) + b"rollback\0")
    assert not is_commit(b"B" + (11).to_bytes(4) + b"COMMIT\0")
    assert is_begin(b"Q" + (10).to_bytes(4) + b"begin\0")
    assert is_committed(b"C" + (11).to_bytes(4) + b"COMMIT\0")
    assert not is_committed(b"C" + (13).to_bytes(4) + b"ROLLBACK\0")
