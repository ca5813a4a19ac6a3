"""Names of resources: their grammar with sub-trees and beyond ASCII, and the algebra of keys, overlap and sharing."""

from __future__ import annotations

import unicodedata
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifier.entries import (
    CLASSES,
    MODES,
    SCHEMES_MAX,
    byte_length,
    check_body,
    check_resource,
    covers,
    is_assigned,
    is_mode_allowed,
    key_of,
    may_share,
    overlaps,
    resource_hint,
    scheme_of,
)
from verifier.wire import JsonObject, JsonValue, Malformed

GOOD_NAMES = [
    "lock:a",
    "lock:deploy/production",
    "repo:app/src/main.py",
    "work:item/184",
    "db-2:.../x",
    "s:" + "/".join(["a"] * 32),
    "s:" + "a" * 255,
    "a23456789012345678901234567890-2:x",
    "k:a:b?c=d&e[0]{1}|~!#$%'()+,;@^_",
    "repo:**",
    "repo:app/**",
    "repo:app/.../**",
    "s:" + "/".join(["a"] * 31) + "/**",
    "repo:é",
    "repo:\u0661/日本/**",
    "repo:\U0001f600",
    "s:" + "é" * 127 + "a",
    "repo:a/\u0301",  # a mark may begin a segment; it has nothing to join
    "repo:\u0378",  # unassigned: let pass in a leaf
    "repo:e\u0301\u0378",  # and then nobody here can say what its normal form is
]
BAD_NAMES = [  # the name, and words of the advice
    ("lock", "scheme:path"),
    ("Lock:a", "scheme:path"),
    ("a234567890123456789012345678901-3:x", "scheme:path"),
    ("é:a", "scheme:path"),
    (":a", "scheme:path"),
    ("lock:", "empty segments"),
    ("lock:/a", "empty segments"),
    ("lock:a/", "empty segments"),
    ("lock:a//b", "empty segments"),
    ("lock:./a", ". and .."),
    ("lock:a/..", ". and .."),
    ("repo:a/b/../c.py", ". and .."),
    ("lock:a\\b", "instead of \\"),
    ("repo:a*", "* stands only as the last segment **"),
    ("repo:*", "* stands only as the last segment **"),
    ("repo:***", "* stands only as the last segment **"),
    ("repo:a**", "* stands only as the last segment **"),
    ("repo:**/a", "* stands only as the last segment **"),
    ("repo:a/**/b", "* stands only as the last segment **"),
    ("repo:**/**", "* stands only as the last segment **"),
    ("repo:src/*.py", "* stands only as the last segment **"),
    ("repo:é/*", "* stands only as the last segment **"),
    ("repo:a b", "printable"),
    ("repo:a\n", "printable"),
    ("repo:**\n", "* stands only"),
    ('repo:a"', "printable"),
    ("repo:a`b", "printable"),
    ("repo:<a>", "printable"),
    ("repo:é ", "printable"),
    ("s:" + "/".join(["a"] * 33), "1 to 32 segments"),
    ("s:" + "/".join(["a"] * 32) + "/**", "1 to 32 segments"),
    ("s:" + "a" * 256, "1 to 255 bytes"),
    ("s:" + "é" * 256, "1 to 255 bytes"),
    ("s:" + "/".join(["a" * 254] * 5), "at most 1,024 bytes"),
    ("s:" + "é" * 128, "255 in a segment"),
    ("s:" + "/".join(["é" * 100] * 6), "at most 1,024 bytes"),
    ("repo:e\u0301", "write repo:é"),
    ("repo:\u212b", "write repo:\u00c5"),
    ("repo:a\u0323\u0307b", "write repo:\u1ea1\u0307b"),
]
UNSEEN = {
    "Cc": "\u0085",
    "Cf": "\u200b",
    "Co": "\ue000",
    "Zs": "\u3000",
    "Zl": "\u2028",
    "Zp": "\u2029",
    "soft hyphen": "\u00ad",
    "grapheme joiner": "\u034f",
    "Hangul filler": "\u3164",
    "Hangul choseong filler": "\u115f",
    "halfwidth Hangul filler": "\uffa0",
    "Khmer inherent vowel": "\u17b4",
    "Mongolian variation selector": "\u180b",
    "Mongolian variation selector four": "\u180f",
    "variation selector": "\ufe0f",
    "variation selector supplement": "\U000e0100",
    "tag": "\U000e0061",
    "reserved ignorable": "\U000e0fff",
    "byte order mark": "\ufeff",
    "right-to-left override": "\u202e",
    "shorthand format": "\U0001bca0",
    "musical format": "\U0001d173",
    "lone surrogate": "\ud800",
}


@pytest.mark.parametrize("name", GOOD_NAMES)
def test_a_resource_name_of_the_protocol_is_accepted(name: str) -> None:
    assert check_resource(name) is None  # type: ignore[func-returns-value]


@pytest.mark.parametrize(("name", "advice"), BAD_NAMES)
def test_a_bad_resource_name_is_refused_with_the_remedy(name: str, advice: str) -> None:
    with pytest.raises(Malformed) as caught:
        check_resource(name)
    assert advice in str(caught.value)
    assert f"the name has {len(name)} characters" in str(caught.value)


@pytest.mark.parametrize("character", UNSEEN.values(), ids=UNSEEN)
def test_what_cannot_be_seen_is_in_no_name(character: str) -> None:
    assert "can't be seen" in (resource_hint(f"repo:a{character}b") or "")


def test_unassigned_characters_are_told_apart() -> None:
    assert not is_assigned("repo:\u0378")
    assert all(is_assigned(name) for name in ("repo:a", "repo:é/**"))


# Pairs that a heuristic for globs took for apart, or for the same, in other tools.
@pytest.mark.parametrize(
    ("a", "b", "wanted"),
    [
        ("repo:src/**", "repo:src/a.py", True),
        ("repo:src/**", "repo:src", True),
        ("repo:src/**", "repo:src/b/**", True),
        ("repo:src/**", "repo:srcs/a.py", False),
        ("repo:src/**", "repo:src.py", False),
        ("repo:**", "repo:README.md", True),
        ("repo:**", "repos:README.md", False),
        ("repo:**", "repo:**", True),
        ("repo:README.md", "repo:docs/README.md", False),
        ("repo:a/**", "repo:a/b/c/**", True),
        ("repo:a/b/**", "repo:a/c/**", False),
        ("repo:a", "repo:A", False),
        ("lock:a", "repo:a", False),
    ],
)
def test_pairs_that_others_got_wrong(a: str, b: str, wanted: bool) -> None:
    assert overlaps(a, b) is overlaps(b, a) is wanted


def test_a_decomposed_name_never_stands_beside_its_composed_twin() -> None:
    composed, decomposed = "repo:caf\u00e9", "repo:cafe\u0301"
    assert unicodedata.normalize("NFC", decomposed) == composed
    assert (resource_hint(composed), resource_hint(decomposed) is None) == (None, False)


def test_keys_fold_ascii_and_nothing_else_and_only_where_the_scheme_folds() -> None:
    assert key_of("doc:Plan/ÄZ/**", True) == "doc:plan/Äz/**"
    assert key_of("doc:Plan", True) == "doc:plan"
    assert key_of("doc:Plan", False) == "doc:Plan"


@given(st.text(max_size=12))
def test_folding_twice_is_folding_once_and_keeps_the_length(path: str) -> None:
    key = key_of(f"s:{path}", True)
    assert key_of(key, True) == key
    assert len(key) == len(path) + 2
    assert all(a == b or (a.isascii() and a.lower() == b) for a, b in zip(path, key[2:], strict=True))


# --- the algebra, against sets of names written out ---

_PATHS = ["/".join(parts) for depth in (1, 2, 3) for parts in product("ab", repeat=depth)]
_EXACT = [f"{scheme}:{path}" for scheme in "st" for path in _PATHS]
_TREES = [f"{scheme}:{path}/**" for scheme in "st" for path in _PATHS if path.count("/") < 2] + ["s:**", "t:**"]
NAMES = st.sampled_from(_EXACT + _TREES)


def meant(name: str) -> set[str]:
    """The exact names of the little world that a name stands for, by the words of the protocol."""
    if not name.endswith("**"):
        return {name}
    if name.endswith(":**"):
        return {other for other in _EXACT if scheme_of(other) == scheme_of(name)}
    stem = name.removesuffix("/**")
    return {other for other in _EXACT if other == stem or other.startswith(stem + "/")}


def test_overlap_and_cover_are_those_of_the_sets_that_names_stand_for() -> None:
    for a, b in product(_EXACT + _TREES, repeat=2):
        assert overlaps(a, b) == bool(meant(a) & meant(b)), (a, b)
        assert covers(a, b) == (meant(a) >= meant(b)), (a, b)


@given(NAMES, NAMES, NAMES)
def test_the_laws_of_overlap_and_cover(a: str, b: str, c: str) -> None:
    assert overlaps(a, a) and covers(a, a)
    assert overlaps(a, b) == overlaps(b, a)
    assert overlaps(a, b) or not covers(a, b)
    assert covers(a, c) or not (covers(a, b) and covers(b, c))
    assert not (covers(a, b) and covers(b, a)) or a == b
    assert overlaps(a, c) or not (covers(a, b) and overlaps(b, c))


@given(st.sampled_from(CLASSES), st.sampled_from(MODES), st.sampled_from(MODES))
def test_sharing_is_symmetric_and_only_of_modes_that_the_class_has(kind: str, a: str, b: str) -> None:
    assert may_share(kind, a, b) == may_share(kind, b, a)
    assert not may_share(kind, a, b) or (is_mode_allowed(kind, a) and is_mode_allowed(kind, b))
    assert not (may_share(kind, a, b) and {a, b} & {"write", "delete"})


def test_who_may_share_is_the_table_of_the_protocol() -> None:
    shared = {(kind, *sorted({a, b})) for kind, a, b in product(CLASSES, MODES, MODES) if may_share(kind, a, b)}
    assert shared == {
        ("read-safe", "read"),
        ("append-only", "read"),
        ("append-only", "append"),
        ("append-only", "append", "read"),
    }
    refused = {(kind, mode) for kind, mode in product(CLASSES, MODES) if not is_mode_allowed(kind, mode)}
    assert refused == {("append-only", "write"), ("append-only", "delete")}


# --- sets of names ---


def release(names: list[str]) -> JsonObject:
    several: list[JsonValue] = [*names]
    did = "did:key:z6MkmtWtY63GQVBrpMyRJWEzsnxfsGkemu6CtMDwGTv4RYj2"
    return {"ledger": "gateway.example/main", "actorDid": did, "resources": several}


def test_a_set_is_bounded_in_schemes_and_in_bytes_of_utf_8() -> None:
    check_body("lease.release", release([f"s{n}:a" for n in range(SCHEMES_MAX)]))
    check_body("lease.release", release([f"s{n % SCHEMES_MAX}:{n}" for n in range(256)]))
    with pytest.raises(Malformed, match="too many different schemes"):
        check_body("lease.release", release([f"s{n}:a" for n in range(SCHEMES_MAX + 1)]))
    names = ["s:" + "/".join(["é" * 100] * 5) + f"/{n:02}" for n in range(17)]
    assert byte_length("".join(names)) > 16_384 > len("".join(names))
    check_body("lease.release", release(names[:16]))
    with pytest.raises(Malformed, match="together at most 16,384 bytes"):
        check_body("lease.release", release(names))


def test_a_sub_tree_counts_as_one_name_and_may_stand_beside_what_it_covers() -> None:
    check_body("lease.release", release(["repo:app/**", "repo:app/a.py"]))
