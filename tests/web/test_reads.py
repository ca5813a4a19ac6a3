"""Reads: files of the log for everybody, entries for whoever may, never beyond the newest checkpoint."""

import asyncio
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import orjson
import pytest

from gateway.store.contract import Reading, StoredEntry
from gateway.store.sqlite import Reader
from gateway.web import reads
from gateway.web.reads import ReadThread
from keys.signing import SigningKey
from tests.web.test_problems import check_problem
from tests.web.world import ORIGIN, World, make, world
from verifier.checkpoint import parse_checkpoint
from verifier.entries import parse_leaf
from verifier.merkle import leaf_hash, node_hash
from verifier.receipt import check_receipt
from verifier.replay.tree import Tree
from verifier.wire import encode_base64

RECEIPTS = "/api/v1/acp/ledger/receipts"
AGENTS = "/api/v1/acp/agents"
MEMBERS_ONLY = [
    "/main/tile/entries/000.p/1", f"{RECEIPTS}/0", "/api/v1/acp/coordination/wait", AGENTS,
    f"/api/v1/acp/coordination/leases?holder={SigningKey(bytes(range(32))).did}",
]  # fmt: skip


def leaves_in(content: bytes) -> Iterator[bytes]:
    """Cut an entry bundle; a length that does not fit raises."""
    at = 0
    while at < len(content):
        length = int.from_bytes(content[at : at + 2], "big")
        assert at + 2 + length <= len(content)
        yield content[at + 2 : at + 2 + length]
        at += 2 + length


async def fill(place: World, size: int) -> None:
    """Write entries until the newest checkpoint covers exactly `size`."""
    while place.gateway.house.sequencer.confirmed.size < size:
        key = SigningKey.generate()
        reply = await place.send(place.signed(place.operator, "agent.add", agent=key.did))
        assert reply.status == 200, reply.body


async def test_the_checkpoint_is_signed_and_covers_the_last_answer(public: World) -> None:
    granted = await public.acquire("a", "lock:x")
    reply = await public.get("/main/checkpoint")
    checkpoint = parse_checkpoint(reply.body)
    assert (reply.status, reply.headers["content-type"]) == (200, "text/plain; charset=utf-8")
    assert reply.headers["cache-control"] == "no-store"
    assert checkpoint.origin == ORIGIN
    assert reply.body.decode() in granted.json["receipt"]["proof"]


@pytest.mark.parametrize("size", [4, 255, 256, 257])
async def test_tiles_and_bundles_rebuild_the_signed_root(tmp_path: object, size: int) -> None:
    from pathlib import Path

    from tests.web.world import make, world

    folder = Path(str(tmp_path)) / "data"
    made = make(folder, rate_burst=10_000, rate_per_second=10_000)
    async with world(folder, made) as place:
        await fill(place, size)
        checkpoint = parse_checkpoint((await place.get("/main/checkpoint")).body)
        assert checkpoint.size == size
        tree = Tree()
        for index, width in enumerate([256] * (size // 256) + [size % 256] * (size % 256 > 0)):
            part = "" if width == 256 else f".p/{width}"
            hashes = await place.get(f"/main/tile/0/{index:03d}{part}")
            bundle = await place.get(f"/main/tile/entries/{index:03d}{part}")
            leaves = list(leaves_in(bundle.body))
            assert b"".join(map(leaf_hash, leaves)) == hashes.body
            cache = "public, max-age=31536000, immutable" if width == 256 else "no-store"
            assert (hashes.headers["cache-control"], bundle.headers["cache-control"]) == (cache, cache)
            assert hashes.headers["content-type"] == "application/octet-stream"
            for leaf in leaves:
                tree.append(leaf_hash(leaf))
        assert tree.root() == checkpoint.root
        above = await place.get("/main/tile/1/000.p/1")
        assert (above.status == 200) == (size >= 256)
        beyond = await place.get(f"/main/tile/0/{size // 256:03d}.p/{size % 256 + 1}")
        check_problem(beyond, "not_found", 404)


async def test_a_part_of_a_tile_is_its_beginning(public: World) -> None:
    whole = await public.get("/main/tile/0/000.p/3")
    part = await public.get("/main/tile/0/000.p/2")
    assert whole.body[:64] == part.body
    assert len(part.body) == 64
    assert node_hash(part.body[:32], part.body[32:])


@pytest.mark.parametrize("path", ["/main/tile/0/000.p/0", "/main/tile/0/0", "/main/tile/8/000", "/main/tile/../x"])
async def test_a_path_that_is_no_tile_is_not_found(public: World, path: str) -> None:
    check_problem(await public.get(path), "not_found", 404)


async def test_a_receipt_again_is_the_same_leaf_and_signature_at_the_newest_checkpoint(public: World) -> None:
    granted = (await public.acquire("a", "lock:x")).json["receipt"]
    seq = int(granted["proof"].split("index ")[1].split("\n")[0])
    await public.acquire("b", "lock:y")
    reply = await public.get(f"{RECEIPTS}/{seq}")
    again = reply.json
    assert {name: again[name] for name in ("payloadType", "payload", "signatures")} == {
        name: granted[name] for name in ("payloadType", "payload", "signatures")
    }
    assert (await public.get("/main/checkpoint")).body.decode() in again["proof"]
    assert check_receipt(reply.body, public.keyring).exit_code == 0
    assert reply.headers["cache-control"] == "no-store"


async def test_every_entry_has_a_receipt_that_verifies(public: World) -> None:
    await public.acquire("a", "lock:x")
    for seq in range(public.gateway.house.sequencer.confirmed.size):
        assert check_receipt((await public.get(f"{RECEIPTS}/{seq}")).body, public.keyring).exit_code == 0


@pytest.mark.parametrize("seq", ["99", "01", "-1", "x", "", "1/2", "9" * 30])
async def test_a_receipt_that_is_not_there(public: World, seq: str) -> None:
    check_problem(await public.get(f"{RECEIPTS}/{seq}"), "not_found", 404)


@pytest.mark.parametrize("target", MEMBERS_ONLY)
async def test_a_members_ledger_shows_entries_to_signed_readers_only(members: World, target: str) -> None:
    key = await members.agent("a")
    check_problem(await members.get(target), "signature_missing", 401)
    stranger = await members.send(members.signed_read(SigningKey.generate(), target))
    check_problem(stranger, "reader_unknown", 403)
    for reader in (key, members.operator):
        reply = await members.send(members.signed_read(reader, target))
        assert reply.status == 200, reply.body
        assert reply.headers["cache-control"] == "private, no-store"


@pytest.mark.parametrize(("size", "root"), [(2, b"\0" * 32), (1, b"\1" * 32), (999_999, b"\0" * 32)])
async def test_a_reader_anchored_in_another_history_is_told_so(members: World, size: int, root: bytes) -> None:
    key = await members.agent("a")
    anchor = f"{ORIGIN} {size} {encode_base64(root)}"
    reply = await members.send(members.signed_read(key, f"{RECEIPTS}/0", anchor=anchor))
    check_problem(reply, "unknown_history", 409, "number", "retry")
    newest = members.gateway.house.sequencer.confirmed
    anchor = f"{ORIGIN} {newest.size} {encode_base64(newest.root)}"
    assert (await members.send(members.signed_read(key, f"{RECEIPTS}/0", anchor=anchor))).status == 200


LEASES = "/api/v1/acp/coordination/leases?holder=me"


async def test_who_may_act_unasked_may_ask_what_it_holds_before_it_acts(dev: World) -> None:
    """`join` said that any key may act, and the first command after it was refused."""
    key = SigningKey.generate()
    before = dev.gateway.house.sequencer.confirmed.size
    reply = await dev.send(dev.signed_read(key, LEASES))
    assert (reply.status, reply.json["holder"], reply.json["leases"]) == (200, key.did, [])
    assert dev.gateway.house.sequencer.confirmed.size == before, "asking enrols nobody"
    await dev.send(dev.signed(key, "lease.acquire", resource="lock:x"))
    await dev.send(dev.signed(dev.operator, "agent.remove", agent=key.did))
    check_problem(await dev.send(dev.signed_read(key, LEASES)), "agent_removed", 403, "number")


async def test_elsewhere_a_stranger_is_told_that_it_is_none(public: World) -> None:
    check_problem(await public.send(public.signed_read(SigningKey.generate(), LEASES)), "reader_unknown", 403)


async def test_a_throw_away_ledger_of_members_shows_strangers_nothing(tmp_path: Path) -> None:
    made = make(tmp_path / "data", is_public=False, is_dev=True)
    async with world(tmp_path / "data", made) as closed:
        for target in (LEASES, *MEMBERS_ONLY):
            stranger = closed.signed_read(SigningKey.generate(), target)
            check_problem(await closed.send(stranger), "reader_unknown", 403)


@pytest.mark.parametrize("target", MEMBERS_ONLY)
async def test_a_removed_member_reads_no_more(members: World, target: str) -> None:
    key = await members.agent("a")
    await members.send(members.signed(members.operator, "agent.remove", agent=key.did))
    check_problem(await members.send(members.signed_read(key, target)), "agent_removed", 403, "number")


async def test_a_members_read_lives_15_seconds_at_most(members: World) -> None:
    key = await members.agent("a")
    check_problem(await members.send(members.signed_read(key, AGENTS, life_s=16)), "outside_window", 401)
    old = members.signed_read(key, AGENTS, created_s=int(time.time()) - 60)
    check_problem(await members.send(old), "outside_window", 401)


async def test_a_read_signed_for_one_path_opens_no_other(members: World) -> None:
    key = await members.agent("a")
    message = members.signed_read(key, f"{RECEIPTS}/0")
    moved = type(message)("GET", f"{RECEIPTS}/1", message.fields)
    check_problem(await members.send(moved), "signature_invalid", 401)


@pytest.mark.parametrize("path", ["/main/checkpoint", "/main/tile/0/000.p/1", "/livez", "/readyz", "/openapi.json"])
async def test_hashes_and_documents_of_a_members_ledger_are_for_everybody(members: World, path: str) -> None:
    assert (await members.get(path)).status == 200


async def test_the_wait_view_shows_holder_and_waiter(public: World) -> None:
    await public.acquire("a", "lock:x")
    await public.acquire("b", "lock:x")
    (row,) = (await public.get("/api/v1/acp/coordination/wait")).json["resources"]
    assert (row["resource"], row["leases"][0]["holder"]) == ("lock:x", public.agents["a"].did)
    assert [waiting["actor"] for waiting in row["waiting"]] == [public.agents["b"].did]
    assert (await public.get("/api/v1/acp/coordination/wait?resource=lock:y")).json["resources"] == []
    check_problem(await public.get("/api/v1/acp/coordination/wait?colour=red"), "query_malformed", 400)


async def test_the_wait_view_shows_the_line_and_who_holds_the_tree_around_a_name(public: World) -> None:
    await public.acquire("a", "repo:app/**")
    for name in "bc":
        assert (await public.acquire(name, "repo:app/src/a.py", wait=True)).status == 202
    for query in ("", "?resource=repo:app/src/a.py", "?resource=repo%3Aapp%2Fsrc%2Fa.py"):
        rows = (await public.get(f"/api/v1/acp/coordination/wait{query}")).json["resources"]
        row = next(row for row in rows if row["resource"] == "repo:app/src/a.py")
        assert [(lease["holder"], lease["heldAs"]) for lease in row["leases"]] == [
            (public.agents["a"].did, "repo:app/**")
        ]
        assert [(ticket["position"], ticket["actor"], ticket["state"]) for ticket in row["queue"]] == [
            (1, public.agents["b"].did, "queued"), (2, public.agents["c"].did, "queued"),
        ]  # fmt: skip
    public.audit()


@pytest.mark.parametrize("name", ["", "lock", "lock:", "lock:a//b", "lock:*", "lock:%FF", "a:" + "b/" * 40 + "c"])
async def test_a_name_that_nobody_can_hold_is_not_looked_for(public: World, name: str) -> None:
    reply = await public.get(f"/api/v1/acp/coordination/wait?resource={name}")
    check_problem(reply, "query_malformed", 400)


async def test_schemes_are_listed_as_operators_set_them(public: World) -> None:
    assert (await public.get("/api/v1/acp/schemes")).json == {"ok": True, "schemes": []}
    members = {"name": "doc", "class": "read-safe", "isFolding": True, "maxHoldMs": 60_000}
    reply = await public.ask("op", "scheme.set", **members)
    assert reply.status == 200, reply.body
    assert (await public.get("/api/v1/acp/schemes")).json["schemes"] == [
        {**members, "isUnicode": False, "lockDelayMs": 0, "seq": 3}
    ]
    public.audit()


async def test_trust_is_shown_with_the_entry_that_changed_it(public: World) -> None:
    """Scenario 47: fresh keys start where entry 0 says; the history is in the ledger."""
    path, key = "/api/v1/acp/coordination/trust", await public.agent("a")
    reply = await public.get(f"{path}?did={key.did}")
    found = reply.json
    now_ms = found.pop("nowMs")
    assert found == {"ok": True, "did": key.did, "trust": 50_000, "lastSeq": None}
    assert abs(now_ms - time.time() * 1_000) < 60_000
    for query in ("", "?did=", "?did=me", "?holder=" + key.did, f"?did={key.did}&x=1", "?did=did:key:z6Mk"):
        check_problem(await public.get(path + query), "query_malformed", 400)


async def test_on_a_members_ledger_only_members_see_schemes_and_trust(members: World) -> None:
    key = await members.agent("a")
    for path in ("/api/v1/acp/schemes", f"/api/v1/acp/coordination/trust?did={key.did}"):
        check_problem(await members.get(path), "signature_missing", 401)
        reply = await members.send(members.signed_read(key, path))
        assert (reply.status, reply.headers["cache-control"]) == (200, "private, no-store")


async def test_my_leases_need_my_signature_also_on_a_public_ledger(public: World) -> None:
    await public.acquire("a", "lock:x")
    target = "/api/v1/acp/coordination/leases?holder=me"
    check_problem(await public.get(target), "signature_missing", 401)
    mine = await public.send(public.signed_read(public.agents["a"], target))
    assert [lease["resources"] for lease in mine.json["leases"]] == [["lock:x"]]
    theirs = await public.get(f"/api/v1/acp/coordination/leases?holder={public.agents['a'].did}")
    assert theirs.json["leases"] == mine.json["leases"]


@pytest.mark.parametrize("query", ["", "?holder=", "?holder=you", "?holder=me&x=1", "?me"])
async def test_a_query_that_names_no_holder(public: World, query: str) -> None:
    check_problem(await public.get(f"/api/v1/acp/coordination/leases{query}"), "query_malformed", 400)


async def test_the_list_of_agents_says_who_was_added_and_removed(public: World) -> None:
    a, b = await public.agent("a"), await public.agent("b")
    await public.send(public.signed(public.operator, "agent.remove", agent=a.did))
    rows = (await public.get(AGENTS)).json["agents"]
    assert [(row["did"], row["name"], "removedSeq" in row) for row in rows] == [(a.did, "a", True), (b.did, "b", False)]
    assert rows[0]["removedSeq"] > rows[1]["addedSeq"] > rows[0]["addedSeq"]


async def test_the_key_documents_are_the_published_files(public: World) -> None:
    for path, name in (
        ("tallystick-keys", "keys.note"),
        ("tallystick-policy.txt", "policy.txt"),
        ("jwks.json", "jwks.json"),
        ("did.json", "did.json"),
    ):
        reply = await public.get(f"/.well-known/{path}")
        assert reply.body == (public.folder / "public" / name).read_bytes()


async def test_head_has_the_headers_of_get_and_no_body(public: World) -> None:
    from tests.web.world import AUTHORITY, Message

    reply = await public.send(Message("HEAD", "/livez", (("host", AUTHORITY),)))
    assert (reply.status, reply.body, reply.headers["content-length"]) == (200, b"", "3")


@pytest.mark.parametrize("target", MEMBERS_ONLY)
async def test_head_on_a_members_ledger_is_signed_as_head(members: World, target: str) -> None:
    key = await members.agent("a")
    get, head = members.signed_read(key, target), members.signed_read(key, target, method="HEAD")
    expected, reply = await members.send(get), await members.send(head)
    assert (reply.status, reply.body, len(expected.body) > 0) == (200, b"", True)
    assert reply.headers["content-type"] == expected.headers["content-type"]
    assert reply.headers["cache-control"] == "private, no-store"
    assert (await members.send(replace(get, method="HEAD"))).status == 401
    assert (await members.send(replace(head, method="GET"))).status == 401


async def test_entry_0_names_everything_that_later_decisions_depend_on(public: World) -> None:
    (leaf,) = leaves_in((await public.get("/main/tile/entries/000.p/1")).body)
    parsed = parse_leaf(leaf)
    assert (parsed.type, parsed.origin, parsed.epoch) == ("tallystick/ledger.opened/1", ORIGIN, 0)
    assert parsed.value["operators"] == [public.operator.did]
    assert parsed.value["isPublic"] is True and parsed.value["isDev"] is False
    assert orjson.dumps(parsed.value, option=orjson.OPT_SORT_KEYS) == leaf


async def test_pictures_are_limited_per_address(public: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A picture walks through every live record, on the thread that decides."""
    monkeypatch.setattr(public.gateway.house.pictures, "_burst", 5)
    monkeypatch.setattr(public.gateway.house.pictures, "_rate_per_s", 0.001)
    replies = [await public.get(AGENTS) for _ in range(6)]
    assert [reply.status for reply in replies] == [200] * 5 + [429]
    check_problem(replies[-1], "rate_limited", 429)
    assert "ratelimit" not in replies[-1].headers, "that is the allowance of decisions"
    assert (await public.acquire("a", "lock:x")).status == 200


async def test_a_receipt_of_an_entry_that_was_changed_in_the_store_is_not_served(
    public: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What no verifier would accept is refused here too, and the entries beside it are served as before."""
    await public.acquire("a", "lock:x")
    last = public.gateway.house.sequencer.confirmed.size - 1
    entries = Reader.entries

    def changed(reader: Reader, start: int, stop: int) -> list[StoredEntry]:
        rows = entries(reader, start, stop)
        return [StoredEntry(row.seq, row.leaf.replace(b"lock:x", b"lock:y"), row.signature) for row in rows]

    monkeypatch.setattr(Reader, "entries", changed)
    check_problem(await public.get(f"{RECEIPTS}/{last}"), "entry_damaged", 500)
    assert (await public.get(f"{RECEIPTS}/0")).status == 200


# -- the thread --------------------------------------------------------------------------------------------------------


class Stuck:
    """A store that does not answer until it is let go."""

    def __init__(self) -> None:
        self.asked, self.answers = asyncio.Event(), threading.Event()
        self.is_closed = False
        self._loop = asyncio.get_running_loop()

    def head(self) -> int:
        self._loop.call_soon_threadsafe(self.asked.set)
        assert self.answers.wait(60)
        return 7

    def close(self) -> None:
        self.is_closed = True


async def test_a_read_that_is_not_answered_keeps_nobody_from_stopping(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread is a daemon's: the process may end under it. Else the connection is given back behind the read."""
    monkeypatch.setattr(reads, "STOP_S", 0.05)
    store, before = Stuck(), set(threading.enumerate())
    thread = ReadThread(lambda: cast(Reading, store))
    read = asyncio.create_task(thread.call(lambda reader: cast(Stuck, reader).head()))
    await store.asked.wait()
    await thread.close()
    assert not read.done()
    (own,) = set(threading.enumerate()) - before
    assert own.daemon
    store.answers.set()
    assert await read == 7
    await asyncio.to_thread(own.join, 60)
    assert not own.is_alive()
    assert store.is_closed


async def test_a_read_that_nobody_waits_for_any_more_is_not_begun() -> None:
    store = Stuck()
    begun: list[Reading] = []
    thread = ReadThread(lambda: cast(Reading, store))
    first = asyncio.create_task(thread.call(lambda reader: cast(Stuck, reader).head()))
    await store.asked.wait()
    second = asyncio.create_task(thread.call(begun.append))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    store.answers.set()
    assert await first == 7
    await thread.close()
    assert begun == [] and store.is_closed
