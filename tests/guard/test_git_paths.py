"""Paths as names, links, and what is read of git: without a gateway."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.guard.changes import Need, needs_of
from gateway.guard.check import around, rival_words
from gateway.guard.git import Change, GitFailed, parse_raw
from gateway.guard.held import Held, Rival
from gateway.guard.paths import PathRefused, Place, link_end, resource_of
from gateway.guard.settings import Settings, Unset, settings_of
from gateway.guard.trailer import making_of
from verifier.entries import covers, resource_hint
from verifier.wire import JsonObject

ASCII, UNICODE = Place("repo", "app"), Place("repo", "app", is_unicode=True)
SEGMENT = st.one_of(
    st.binary(min_size=1, max_size=8), st.text(min_size=1, max_size=4).map(lambda text: text.encode("utf-8", "replace"))
).map(lambda segment: segment.replace(b"/", b"_").replace(b"\0", b"_"))
PATH = st.lists(SEGMENT, min_size=1, max_size=4).map(b"/".join)


@given(PATH, PATH)
def test_every_path_has_a_name_and_no_two_share_one(one: bytes, other: bytes) -> None:
    """Scenario 24: an escape that two paths share would let one through on the other's lease."""
    names = [resource_of(ASCII, path) for path in (one, other)]
    assert [resource_hint(name) for name in names] == [None, None]
    assert (names[0] == names[1]) == (one == other)


@given(PATH)
def test_what_holds_a_folder_holds_all_in_it(path: bytes) -> None:
    for place in (ASCII, UNICODE):
        name = resource_of(place, path)
        assert resource_hint(name) is None
        for depth in range(1, path.count(b"/") + 1):
            folder = resource_of(place, b"/".join(path.split(b"/")[:depth]))
            assert covers(f"{folder.removesuffix('/**')}/**", name)
        assert covers(place.whole, name)


@given(st.lists(st.binary(min_size=200, max_size=400).map(lambda s: s.replace(b"/", b"_").replace(b"\0", b"_"))))
def test_what_is_too_long_is_held_with_a_folder_around_it(segments: list[bytes]) -> None:
    path = b"/".join([b"a", *segments, b"z"])
    name = resource_of(ASCII, path)
    assert resource_hint(name) is None
    assert name == f"repo:app/{path.decode('latin-1')}" or name.endswith("/**") or len(segments) == 0 or "%" in name


def test_what_is_too_deep_is_held_with_the_deepest_folder_that_fits() -> None:
    path = b"/".join([b"d"] * 40)
    assert resource_of(ASCII, path) == f"repo:app/{'d/' * 30}**"
    assert covers(resource_of(ASCII, path), resource_of(ASCII, b"/".join([b"d"] * 31)))


def test_both_forms_of_a_letter_are_one_name_in_a_unicode_scheme() -> None:
    """Scenario 24: NFC and NFD; in a scheme without other letters they stay apart."""
    forms = [unicodedata.normalize(form, "ü.txt").encode() for form in ("NFC", "NFD")]
    assert {resource_of(UNICODE, path) for path in forms} == {"repo:app/ü.txt"}
    assert len({resource_of(ASCII, path) for path in forms}) == 2


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (b"src/a b.py", "src/a%20b.py"),
        (b"100%", "100%25"),
        (b"a%20b", "a%2520b"),
        (b"**", "%2A%2A"),
        (b"a\nb", "a%0Ab"),
        (b'q"\\<>`', "q%22%5C%3C%3E%60"),
        (b"..", "%2E%2E"),
        (b"\xff", "%FF"),
        ("é".encode(), "%C3%A9"),
    ],
)
def test_names_as_they_are_spelled(path: bytes, name: str) -> None:
    assert resource_of(ASCII, path) == f"repo:app/{name}"


@pytest.mark.parametrize("path", [b"", b"/a", b"a//b", b"a/"])
def test_what_is_no_path_has_no_name(path: bytes) -> None:
    with pytest.raises(PathRefused):
        resource_of(ASCII, path)


@pytest.mark.parametrize(
    ("links", "end"),
    [
        ({b"a": b"b"}, b"b"),
        ({b"a": b"b/../c"}, b"c"),
        ({b"d/a": b"../e"}, b"e"),
        ({b"a": b"b", b"b": b"c/d", b"c": b"e"}, b"e/d"),
        ({b"a": b"."}, b""),
        ({b"a": b"../x"}, None),
        ({b"a": b"/x"}, None),
        ({b"a": b"b", b"b": b"a"}, None),
        ({b"a": b"b/x", b"b": b".."}, None),
        ({b"a": b".GIT/hooks"}, None),
    ],
)
def test_where_links_lead(links: dict[bytes, bytes], end: bytes | None) -> None:
    """Scenario 29."""
    path = next(iter(links))
    if end is not None:
        assert link_end(path, links) == end
        return
    with pytest.raises(PathRefused):
        link_end(path, links)


def raw(*rows: bytes) -> list[Change]:
    return list(parse_raw(b"".join(row + b"\0" for row in rows)))


def test_what_git_tells_is_read_or_refused() -> None:
    header = b":100644 000000 " + b"1" * 40 + b" " + b"0" * 40
    assert raw(header + b" D", b":100644 -z\n") == [Change(b":100644 -z\n", "D", b"100644", b"000000")]
    for rows in ((header + b" U", b"a"), (header + b" R100", b"a", b"b"), (header + b" D",), (b"x", b"a")):
        with pytest.raises(GitFailed):
            raw(*rows)
    with pytest.raises(GitFailed):
        list(parse_raw(header + b" D\0cut"))


@pytest.mark.parametrize(
    ("status", "delete", "mode"), [("A", "write", "append"), ("M", "write", "write"), ("T", "write", "write"),
                                   ("D", "write", "write"), ("D", "delete", "delete")]
)  # fmt: skip
def test_what_each_change_needs(status: str, delete: str, mode: str) -> None:
    """docs/guards.md has the table."""
    change = Change(b"a", status, b"100644", b"100644")
    assert needs_of(Settings(ASCII, delete_mode=delete), [change], dict) == [Need(b"a", "repo:app/a", mode)]


def held(mode: str, *resources: str, kind: str = "exclusive", is_folding: bool = False) -> Held:
    return Held(1, "L1", 1_000, "did:key:z6Mk", mode, resources, (("repo", kind, is_folding),), 0, 1)


@pytest.mark.parametrize(
    ("lease", "covers_it", "bars_it"),
    [
        (held("write", "repo:app/a"), True, True),
        (held("delete", "repo:app/**"), True, True),
        (held("append", "repo:app/a"), False, True),
        (held("read", "repo:app/a"), False, True),
        (held("read", "repo:app/a", kind="read-safe"), False, True),
        (held("write", "repo:app/A"), False, False),
        (held("write", "repo:app/A", is_folding=True), True, True),
        (held("write", "repo:app/a/**"), True, True),
        (held("write", "repo:app/b", "repo:application/**"), False, False),
        (held("write", "lock:app/a"), False, False),
    ],
)
def test_what_a_lease_covers_and_whom_it_bars(lease: Held, covers_it: bool, bars_it: bool) -> None:
    """Scenario 24: case folds where the entry says that its scheme does."""
    need = Need(b"a", "repo:app/a", "write")
    assert (lease.covers(need), lease.bars(need)) == (covers_it, bars_it)


def test_a_trailer_is_read_wherever_it_stands() -> None:
    header = b"tree " + b"1" * 40 + b"\nauthor A <a> 1000 +0200\ncommitter B <b> 2000 +0000\n\n"
    message = (
        b"m\n\nTallystick-Receipt: o.example/m 4 5\n x\nTallystick-Receipt: p.example/m 6\nTallystick-Receipt: o 1x\n"
    )
    making = making_of(header + message)
    assert (making.from_ms, making.until_ms) == (1_000_000, 2_000_000)
    assert making.receipts == (("o.example/m", 4), ("o.example/m", 5), ("p.example/m", 6))
    assert making.seqs("o.example/m") == [4, 5]
    assert making.meets(2_299_000, 9_000_000) and not making.meets(2_301_000, 9_000_000)
    assert making.meets(0, 701_000) and not making.meets(0, 699_000)
    with pytest.raises(GitFailed):
        making_of(b"tree " + b"1" * 40 + b"\n\nm")


def test_settings_name_what_is_wrong() -> None:
    assert settings_of({"repository": "acme/app", "names": "unicode"}).place == Place("repo", "acme/app", True)
    for said in ({}, {"repository": "a", "Scheme": "b"}, {"repository": "a", "names": "x"}, {"repository": "é"}):
        with pytest.raises(Unset):
            settings_of(said)


def test_a_holder_is_named_by_its_entry_and_labelled_by_the_view() -> None:
    """The label and until when are the gateway's word; a label of another key is not taken for the holder's."""
    lease = held("write", "repo:app/**", "repo:b")
    row: JsonObject = {"holder": lease.actor, "holderName": "bob\x1b", "endsAtMs": 1_796_000_000_000}
    need = Need(b"a", "repo:app/a", "write")
    ends = "write on repo:app/** and 1 more (L1) until 2026-11-30 00:53:20 UTC unless renewed"
    assert rival_words(Rival(need, row, lease)) == f"bob\\x1b ({lease.actor}): {ends}"
    assert rival_words(Rival(need, {**row, "holder": "another"}, lease)) == f"{lease.actor}: {ends}"
    assert rival_words(Rival(need, row, None)).endswith(", as the gateway says without a proof")


@pytest.mark.parametrize(
    ("paths", "name"),
    [
        ((b"a/b/c", b"a/b/d/e"), "a/b/**"),
        ((b"a/b", b"a/b/c"), "a/**"),
        ((b"a b/c",), "a%20b/**"),
        ((b"a", b"b/c"), "**"),
        ((b"d/" * 40 + b"x",), "d/" * 30 + "**"),
    ],
)
def test_many_paths_are_claimed_by_the_folder_around_them(paths: tuple[bytes, ...], name: str) -> None:
    needs = [Need(path, resource_of(ASCII, path), "write") for path in paths]
    found = around(ASCII, needs)
    assert found == f"repo:app/{name}"
    assert all(covers(found, need.resource) for need in needs)
