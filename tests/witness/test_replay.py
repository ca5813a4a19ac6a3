"""A witness that audits first: it cosigns what is clean, never a lie, and no liar a second time."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from gateway.witness import replay as replays_module
from gateway.witness.books import Books, add_line
from gateway.witness.commands import main, make_witness
from gateway.witness.fetch import Files, Unfetched
from gateway.witness.mirror import Differs, Mirror
from gateway.witness.replay import KEYS_PATH, REPLAY_FOLDER, Replays
from gateway.witness.shelf import Shelf, origin_hash
from gateway.witness.witness import Answer, Witness
from keys.files import load_key
from tests.lies.kit import Telling
from tests.lies.table_admissions import liar, policed
from tests.verifier import maker
from verifier.note import parse_vkey
from verifier.replay.source import open_source
from verifier.wire import BODY_BYTES_MAX

ORIGIN = maker.ORIGIN
ALICE, BOB = maker.ALICE, maker.BOB


class Site:
    """A ledger's files behind a real socket. `files` are what is served, by path; `asked` what was asked for.

    `on_ask` is told before an answer goes out, which then waits for `gate`.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.on_ask: Callable[[str], object] = lambda path: None
        self.gate = threading.Event()
        self.gate.set()
        site = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                site.asked.append(self.path)
                site.on_ask(self.path)
                site.gate.wait(30)
                body = site.files.get(self.path)
                self.send_response(404 if body is None else 200)
                self.send_header("Content-Length", str(len(body or b"")))
                self.end_headers()
                self.wfile.write(body or b"")

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/main"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def publish(self, ledger: maker.Ledger, keys: bytes | None = None) -> None:
        """Serve all entries that a ledger has, and its key document."""
        self.files[KEYS_PATH] = ledger.keys() if keys is None else keys
        for start in range(0, len(ledger.leaves), 256):
            leaves = ledger.leaves[start : start + 256]
            for count in {len(leaves)} if len(leaves) == 256 else range(1, len(leaves) + 1):
                part = "" if count == 256 else f".p/{count}"
                bundle = b"".join(len(leaf).to_bytes(2, "big") + leaf for leaf in leaves[:count])
                self.files[f"/main/tile/entries/{start // 256:03}{part}"] = bundle


class Auditing:
    """A witness with one replayed ledger, without its door."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url
        if not folder.exists():
            make_witness(folder, "witness.example/r1")
            add_line(folder, f"replay {maker.root_vkey()} {url}")
        self._start()

    def _start(self) -> None:
        key = load_key(self.folder / "witness.key", purpose="witness")
        vkey = parse_vkey((self.folder / "witness.vkey").read_text().strip())
        self.shelf = Shelf(self.folder, vkey)
        self.replays = Replays(self.folder, self.shelf)
        self.witness = Witness(
            key,
            vkey,
            books=Books(self.folder),
            shelf=self.shelf,
            clock_s=lambda: 1_800_000_000,
            replays=self.replays,
        )

    def add(self, ledger: maker.Ledger, old: int, size: int | None = None, log: maker.Logs = maker.LOG) -> Answer:
        """Show it a ledger's checkpoint."""
        body = ledger.consistency(old, size, log=log) if old else b"old 0\n\n" + ledger.checkpoint(size, log=log)
        return self.witness.add(body)

    def restart(self) -> None:
        """Stop, and start with what is on the disk."""
        self.close()
        self._start()

    def close(self) -> None:
        self.replays.close()
        self.shelf.close()

    @property
    def report(self) -> dict[str, object]:
        """Why the ledger is refused."""
        path = self.folder / "refused" / f"{origin_hash(ORIGIN)}.json"
        report: dict[str, object] = json.loads(path.read_text())
        return report


@pytest.fixture
def site() -> Iterator[Site]:
    found = Site()
    yield found
    found.gate.set()
    found.server.shutdown()
    found.server.server_close()


@pytest.fixture
def auditing(tmp_path: Path, site: Site) -> Iterator[Auditing]:
    found = Auditing(tmp_path / "w", site.url)
    yield found
    found.close()


def grow(ledger: maker.Ledger, entries: int) -> None:
    """Honest work: leases, one after the other."""
    for _ in range(entries // 2):
        ledger.time_ms += 1_000
        ledger.release(ALICE, ledger.grant(ALICE, "repo:a"))


def lie(ledger: maker.Ledger) -> int:
    """Grant B what A holds."""
    ledger.grant(ALICE, "repo:z")
    return ledger.grant(BOB, "repo:z")


def test_an_honest_ledger_is_cosigned_and_each_entry_is_fetched_and_audited_once(
    auditing: Auditing, site: Site
) -> None:
    ledger = maker.opened()
    site.publish(ledger)
    assert auditing.add(ledger, 0).status == 200
    first = len(ledger.leaves)
    grow(ledger, 300)
    site.publish(ledger)
    site.asked.clear()
    assert auditing.add(ledger, first, 100).status == 200
    asked = ["/main/tile/entries/000.p/100", "/main/tile/entries/000"]
    assert site.asked == asked, "a partial bundle may be gone once there is the full one"
    assert auditing.add(ledger, 100).status == 200
    assert site.asked[2:] == ["/main/tile/entries/000", f"/main/tile/entries/001.p/{len(ledger.leaves) - 256}"]
    site.asked.clear()
    assert auditing.add(ledger, len(ledger.leaves)).status == 200, "a quiet ledger gets a fresh time"
    assert site.asked == []


def test_a_start_goes_on_where_the_audit_ended(auditing: Auditing, site: Site) -> None:
    ledger = maker.opened()
    grow(ledger, 20)
    site.publish(ledger)
    assert auditing.add(ledger, 0).status == 200
    size = len(ledger.leaves)
    auditing.restart()
    grow(ledger, 20)
    site.publish(ledger)
    site.asked.clear()
    assert auditing.add(ledger, size).status == 200
    assert site.asked == [KEYS_PATH, f"/main/tile/entries/000.p/{len(ledger.leaves)}"]


def test_the_mirror_is_a_tile_directory_that_anybody_can_audit(auditing: Auditing, site: Site) -> None:
    ledger = maker.opened()
    grow(ledger, 20)
    site.publish(ledger)
    auditing.add(ledger, 0, 10)
    auditing.add(ledger, 10)
    with open_source(auditing.folder / REPLAY_FOLDER / origin_hash(ORIGIN) / "mirror") as source:
        assert list(source.leaves) == ledger.leaves
        assert source.checkpoint == ledger.checkpoint()
    folder = auditing.folder / REPLAY_FOLDER / origin_hash(ORIGIN) / "mirror/tile/entries/000.p"
    assert [path.name for path in folder.iterdir()] == [str(len(ledger.leaves))], "no older partial bundle is left"


def test_a_policed_ledger_is_cosigned_with_the_engine_of_its_rules_and_without_it(
    auditing: Auditing, site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What rules said is no reason to keep quiet for a witness that can't ask them; its log says so."""
    house = policed()
    ledger, half = maker.Ledger(leaves=house.leaves), len(house.leaves) - 3
    site.publish(ledger, house.document())
    assert auditing.add(ledger, 0, half).status == 200
    assert "audited but for rules" not in caplog.text
    monkeypatch.setattr("verifier.replay.auditor.open_engine", lambda: None)
    auditing.restart()
    assert auditing.add(ledger, half).status == 200
    assert "audited but for rules" in caplog.text


def test_a_lie_about_rules_ends_it_for_ever(auditing: Auditing, site: Site) -> None:
    telling = Telling(policed())
    liar("allow", "work", cost=6)(telling)
    ledger = maker.Ledger(leaves=telling.leaves())
    site.publish(ledger, telling.house.document())
    assert auditing.add(ledger, 0).status == 403
    assert "ruling_wrong" in json.dumps(auditing.report)


def test_a_lie_ends_it_for_ever_with_the_report_as_evidence(auditing: Auditing, site: Site) -> None:
    ledger = maker.opened()
    site.publish(ledger)
    size = len(ledger.leaves)
    assert auditing.add(ledger, 0).status == 200
    before = auditing.witness.newest(origin_hash(ORIGIN))
    place = lie(ledger)
    site.publish(ledger)
    answer = auditing.add(ledger, size)
    assert (answer.status, answer.code) == (403, "refused")
    report = auditing.report
    assert report["checkpoint"] == ledger.checkpoint().decode()
    found = report["report"]
    assert isinstance(found, dict)
    assert {finding["seq"] for finding in found["findings"] if finding["outcome"] == "invalid"} == {place}
    auditing.restart()
    site.asked.clear()
    assert auditing.add(ledger, size).status == 403
    assert auditing.add(ledger, size, size).status == 403, "nor what was good before"
    assert site.asked == [], "nothing is read of a ledger that is refused"
    assert auditing.witness.newest(origin_hash(ORIGIN)) == before


def test_a_refusal_ends_it_before_anything_is_read(auditing: Auditing, site: Site) -> None:
    ledger = maker.opened()
    site.publish(ledger)
    auditing.shelf.refuse(ORIGIN, "{}")
    assert (auditing.add(ledger, 0).code, site.asked) == ("refused", [])


def test_a_lie_in_a_ledger_that_was_never_cosigned_is_found_too(auditing: Auditing, site: Site) -> None:
    ledger = maker.opened()
    lie(ledger)
    site.publish(ledger)
    assert auditing.add(ledger, 0).status == 403
    assert auditing.witness.newest(origin_hash(ORIGIN)) is None


def test_tiles_that_the_log_did_not_sign_prove_nothing_and_wait_for_better_ones(auditing: Auditing, site: Site) -> None:
    """Somebody between, or a broken server, must not be able to have an honest ledger refused."""
    ledger, other = maker.opened(), maker.opened()
    lie(other)
    grow(ledger, 2)
    assert len(ledger.leaves) == len(other.leaves)
    site.publish(other)
    answer = auditing.add(ledger, 0)
    assert (answer.status, answer.code, answer.retry_after_s) == (503, "not_audited", 2)
    with pytest.raises(Differs):
        Mirror(auditing.folder / "another").extend(ledger.checkpoint(), Files(site.url))
    site.publish(ledger)
    assert auditing.add(ledger, 0).status == 200


@pytest.mark.parametrize("what", ["missing", "cut", "too long", "empty"])
def test_a_bundle_that_does_not_come_whole_is_asked_for_again(
    auditing: Auditing, site: Site, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    ledger = maker.opened()
    site.publish(ledger)
    path = f"/main/tile/entries/000.p/{len(ledger.leaves)}"
    good = site.files.pop(path)
    if what != "missing":
        site.files[path] = {"cut": good[:-1], "too long": good * 4_000, "empty": b""}[what]
    assert auditing.add(ledger, 0).code == "not_audited"
    site.files[path] = good
    assert auditing.add(ledger, 0).status == 200


def test_who_comes_while_the_ledger_is_read_is_told_to_come_back(
    auditing: Auditing, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replays_module, "WAIT_SECONDS", 0.05)
    ledger = maker.opened()
    site.publish(ledger)
    assert auditing.add(ledger, 3).status == 409, "the key document is fetched before anything is slow"
    site.gate.clear()
    for _ in range(2):
        answer = auditing.add(ledger, 0)
        assert (answer.status, answer.code, answer.retry_after_s) == (503, "replaying", 2)
    site.gate.set()
    monkeypatch.setattr(replays_module, "WAIT_SECONDS", 10.0)
    while (answer := auditing.add(ledger, 0)).code == "replaying":  # the job that was begun comes to its end
        time.sleep(0.01)
    assert answer.status == 200
    assert sum("entries" in path for path in site.asked) == 1


def test_a_stop_ends_a_long_job_at_its_next_bundle_and_a_start_takes_it_up(auditing: Auditing, site: Site) -> None:
    ledger = maker.opened()
    grow(ledger, 600)
    site.publish(ledger)
    replays = auditing.replays
    stops: list[threading.Thread] = []

    def stop(path: str) -> None:
        if "entries" in path and not stops:
            stops.append(threading.Thread(target=replays.close))
            stops[0].start()
            while not all(replay._stopping.is_set() for replay in replays._replays.values()):
                time.sleep(0.001)

    site.on_ask = stop
    assert auditing.add(ledger, 0).code == "not_audited"
    stops[0].join()
    assert sum("entries" in path for path in site.asked) == 1
    auditing.restart()
    assert auditing.add(ledger, 0).status == 200


def test_a_damaged_mirror_is_fetched_again_and_convicts_nobody(auditing: Auditing, site: Site) -> None:
    ledger = maker.opened()
    site.publish(ledger)
    assert auditing.add(ledger, 0).status == 200
    size = len(ledger.leaves)
    folder = auditing.folder / REPLAY_FOLDER / origin_hash(ORIGIN) / "mirror"
    bundle = folder / f"tile/entries/000.p/{size}"
    bundle.write_bytes(bundle.read_bytes().replace(b"agent.added", b"agent.addef"))
    assert Mirror(folder).size == 0
    auditing.restart()
    grow(ledger, 4)
    site.publish(ledger)
    assert auditing.add(ledger, size).status == 200


def test_a_new_log_key_is_found_in_the_key_document_of_the_pinned_root(
    auditing: Auditing, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replays_module, "REFRESH_SECONDS", 0.0)
    ledger = maker.opened()
    site.publish(ledger)
    assert auditing.add(ledger, 0).status == 200
    size = len(ledger.leaves)
    ledger.announce("log", maker.NEW_LOG)
    ledger.retire("log", maker.LOG)
    end = len(ledger.leaves)
    grow(ledger, 4)
    site.publish(ledger, site.files[KEYS_PATH])
    assert auditing.add(ledger, size, log=maker.NEW_LOG).status == 403, (
        "the document of that moment does not know the key"
    )
    lines = [
        f"key log {maker.LOG.vkey(ORIGIN)} 0 {end - 1} retired",
        f"key log {maker.NEW_LOG.vkey(ORIGIN)} {size + 1} - active",
        f"key receipt {maker.RECEIPT.vkey(ORIGIN + '/receipt')} 0 - active",
    ]
    site.publish(ledger, ledger.keys(2, lines))
    assert auditing.add(ledger, size, log=maker.NEW_LOG).status == 200
    assert auditing.add(ledger, 0, end - 1).status == 409, "within its bounds the old key still counts"
    assert auditing.add(ledger, len(ledger.leaves)).status == 403, "and beyond them it does not"


@pytest.mark.parametrize("is_published", [False, True], ids=["document-older", "document-newest"])
def test_a_line_that_is_not_there_convicts_nobody(auditing: Auditing, site: Site, is_published: bool) -> None:
    """While two keys sign anybody may show the checkpoint without one line, and the document may not know it yet."""
    ledger = maker.opened()
    size = len(ledger.leaves)
    ledger.announce("log", maker.NEW_LOG)
    grow(ledger, 2)
    lines = [
        f"key log {maker.LOG.vkey(ORIGIN)} 0 - active",
        f"key log {maker.NEW_LOG.vkey(ORIGIN)} {size + 1} - active",
        f"key receipt {maker.RECEIPT.vkey(ORIGIN + '/receipt')} 0 - active",
    ]
    site.publish(ledger, ledger.keys(2, lines) if is_published else ledger.keys())
    assert auditing.add(ledger, 0, size).status == 200
    stripped = auditing.add(ledger, size)
    assert (stripped.status, stripped.code) == (503, "not_audited")
    both = (maker.LOG, maker.NEW_LOG)
    assert auditing.add(ledger, size, log=both).status == 200, "it was no lie"


def test_a_key_documents_version_never_goes_back(
    auditing: Auditing, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replays_module, "REFRESH_SECONDS", 0.0)
    ledger = maker.opened()
    site.publish(ledger, ledger.keys(2))
    assert auditing.add(ledger, 0).status == 200
    other = [f"key log {maker.NEW_LOG.vkey(ORIGIN)} 0 - active"]
    site.publish(ledger, ledger.keys(1, other))
    size = len(ledger.leaves)
    assert auditing.add(ledger, size, log=maker.NEW_LOG).status == 403
    assert auditing.add(ledger, size).status == 200, "the newer document still counts"


def test_a_disowned_key_signs_nothing_whatever_the_size(auditing: Auditing, site: Site) -> None:
    ledger = maker.opened()
    size = len(ledger.leaves)
    final = f"{size} {maker.b64(ledger.root())}"
    lines = [
        f"key log {maker.LOG.vkey(ORIGIN)} 0 {size} compromised {final}",
        f"key receipt {maker.RECEIPT.vkey(ORIGIN + '/receipt')} 0 - active",
    ]
    site.publish(ledger, ledger.keys(1, lines))
    assert auditing.add(ledger, 0).status == 403


def test_that_a_known_key_was_disowned_is_noticed_in_time(
    auditing: Auditing, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replays_module, "REFRESH_SECONDS", 0.0)
    ledger = maker.opened()
    site.publish(ledger)
    assert auditing.add(ledger, 0).status == 200
    size = len(ledger.leaves)
    lines = [f"key log {maker.LOG.vkey(ORIGIN)} 0 {size} compromised {size} {maker.b64(ledger.root())}"]
    site.publish(ledger, ledger.keys(2, lines))
    assert auditing.add(ledger, size).status == 200
    monkeypatch.setattr(replays_module, "RENEW_SECONDS", 0.0)
    del site.files[KEYS_PATH]
    assert auditing.add(ledger, size).status == 200, "no news is no reason to stop"
    site.publish(ledger, ledger.keys(2, lines))
    assert auditing.add(ledger, size).status == 403


def test_a_ledger_whose_keys_are_not_served_yet_is_asked_to_come_back(
    auditing: Auditing, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway may submit before it listens; 403 would be an alarm there, and a long rest."""
    monkeypatch.setattr(replays_module, "REFRESH_SECONDS", 0.0)
    ledger = maker.opened()
    assert (auditing.add(ledger, 0).status, auditing.add(ledger, 0).code) == (503, "keys_unknown")
    site.publish(ledger)
    assert auditing.add(ledger, 0).status == 200


def test_a_key_document_that_the_pinned_root_did_not_sign_is_none(auditing: Auditing, site: Site) -> None:
    ledger = maker.opened()
    site.publish(ledger, ledger.keys().replace(b"version 1", b"version 2"))
    assert auditing.add(ledger, 0).code == "keys_unknown"


def test_a_ledger_with_another_entry_0_than_the_root_signed_is_refused(auditing: Auditing, site: Site) -> None:
    ledger = maker.opened()
    site.publish(ledger, ledger.keys(genesis="00" * 32))
    assert auditing.add(ledger, 0).code == "refused"


def test_show_names_audited_entries_and_the_refusal(
    auditing: Auditing, site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = maker.opened()
    lie(ledger)
    site.publish(ledger)
    auditing.add(ledger, 0)
    assert main(["show", "--data", str(auditing.folder)]) == 0
    shown = capsys.readouterr().out
    assert f"origin    {ORIGIN} (replayed)\n" in shown
    assert f"audited   {len(ledger.leaves)} entries\n" in shown
    assert "REFUSED   " in shown


# -- fetching ----------------------------------------------------------------------------------------------------------


def test_files_are_bounded_and_a_missing_one_is_none(site: Site) -> None:
    site.files["/main/a"] = b"x" * 100
    files = Files(site.url)
    assert files.get("a", 100) == b"x" * 100
    assert files.get("b", 100) is None
    with pytest.raises(Unfetched, match="longer than 99"):
        files.get("a", 99)
    assert files.get("a", BODY_BYTES_MAX) == b"x" * 100, "the connection is opened again"
    files.close()


def test_an_address_where_nobody_answers_is_unfetched() -> None:
    with pytest.raises(Unfetched):
        Files("http://127.0.0.1:1").get("checkpoint", 100)
