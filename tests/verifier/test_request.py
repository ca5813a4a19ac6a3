"""The signed-request profile: RFC 9421's own vector, and one negative test per known mistake of implementations."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.verifier import maker
from verifier.request import (
    BODY_COMPONENTS,
    READ_COMPONENTS,
    Anchor,
    SignatureInput,
    content_digest,
    is_inside_window,
    is_path,
    is_query,
    parse_anchor,
    parse_idempotency_key,
    parse_signature,
    parse_signature_input,
    signature_base,
)
from verifier.sig import is_valid
from verifier.wire import Malformed

DID = maker.ALICE.did
COVERED = " ".join(f'"{name}"' for name in sorted(BODY_COMPONENTS))
PARAMS = f'created=1700000000;expires=1700000015;keyid="{DID}";alg="ed25519";nonce="{"n" * 22}";tag="tallystick-v1"'
GOOD = f"sig=({COVERED});{PARAMS}"


def test_the_signature_base_is_that_of_rfc_9421_b_2_6() -> None:
    """The vector covers other components than our profile; the base is built by the same rule."""
    components = ("date", "@method", "@path", "@authority", "content-type", "content-length")
    covered = " ".join(f'"{name}"' for name in components)
    params = f'({covered});created=1618884473;keyid="test-key-ed25519"'
    values = dict(
        zip(
            components,
            ("Tue, 20 Apr 2021 02:07:55 GMT", "POST", "/foo", "example.com", "application/json", "18"),
            strict=True,
        )
    )
    base = signature_base(SignatureInput("sig-b26", components, params, 1618884473, 0, "test-key-ed25519", ""), values)
    assert base == (
        b'"date": Tue, 20 Apr 2021 02:07:55 GMT\n"@method": POST\n"@path": /foo\n"@authority": example.com\n'
        b'"content-type": application/json\n"content-length": 18\n"@signature-params": ' + params.encode()
    )
    signature = parse_signature(
        "sig-b26=:wqcAqbmYJ2ji2glfAMaRy4gruYYnx2nEFN2HN6jrnDnQCK1u02Gb04v9EDgwUPiu4A0w6vuQv5lIp5WPpBKRCw==:", "sig-b26"
    )
    key = bytes.fromhex("26b40b8f93fff3d897112f7ebc582b232dbd72517d082fe83cfb30ddce43d1bb")
    assert is_valid(key, base, signature)
    assert not is_valid(key, base + b" ", signature)


def test_a_good_input_is_read_whole() -> None:
    read = parse_signature_input(GOOD)
    params = GOOD.removeprefix("sig=")
    assert read == SignatureInput("sig", tuple(sorted(BODY_COMPONENTS)), params, 1700000000, 1700000015, DID, "n" * 22)


def test_the_order_of_components_and_parameters_is_free_and_kept() -> None:
    """Re-serialising in an order of one's own is the classic mistake; the received text is what was signed."""
    value = f"x1=({' '.join(reversed(COVERED.split()))});{';'.join(reversed(PARAMS.split(';')))}"
    read = parse_signature_input(value)
    assert read.params == value.removeprefix("x1=")
    values = dict.fromkeys(BODY_COMPONENTS, "v")
    assert signature_base(read, values).endswith(b'\n"@signature-params": ' + read.params.encode())


MISTAKES = {
    "component twice": GOOD.replace('"@path"', '"@path" "@path"'),
    "component with a parameter": GOOD.replace('"@path"', '"@path";req'),
    "component in capitals": GOOD.replace('"content-type"', '"Content-Type"'),
    "no component": f"sig=();{PARAMS}",
    "two spaces between components": GOOD.replace('" "', '"  "', 1),
    "space inside the list": GOOD.replace("(", "( "),
    "two members": f"{GOOD}, other={GOOD.removeprefix('sig=')}",
    "label only inside a quoted string": f'x="sig={COVERED}"',
    "label hidden in a nonce": GOOD.replace("n" * 22, "sig=(" + "n" * 20),
    "label with capitals": GOOD.replace("sig=", "Sig="),
    "no label": GOOD.removeprefix("sig="),
    "escape in a string": GOOD.replace("n" * 22, "n" * 21 + '\\"n'),
    "parameter twice": GOOD + ";created=1700000000",
    "parameter unknown": GOOD + ';session="x"',
    "created missing": GOOD.replace("created=1700000000;", ""),
    "expires missing": GOOD.replace("expires=1700000015;", ""),
    "keyid missing": GOOD.replace(f'keyid="{DID}";', ""),
    "alg missing": GOOD.replace('alg="ed25519";', ""),
    "nonce missing": re.sub('nonce="n+";', "", GOOD),
    "tag missing": GOOD.replace(';tag="tallystick-v1"', ""),
    "other alg": GOOD.replace("ed25519", "rsa-v1_5-sha256"),
    "alg in capitals": GOOD.replace("ed25519", "Ed25519"),
    "other tag": GOOD.replace("tallystick-v1", "web-bot-auth"),
    "alg as a token": GOOD.replace('"ed25519"', "ed25519"),
    "created as a string": GOOD.replace("created=1700000000", 'created="1700000000"'),
    "created with a sign": GOOD.replace("created=", "created=+"),
    "created negative": GOOD.replace("created=", "created=-"),
    "created with a leading zero": GOOD.replace("created=", "created=0"),
    "created with a fraction": GOOD.replace("created=1700000000", "created=1700000000.0"),
    "created in Arabic digits": GOOD.replace("created=1700000000", "created=١٧٠٠٠٠٠٠٠٠"),
    "created of sixteen digits": GOOD.replace("created=1700000000", "created=1700000000000000"),
    "nonce of 21 characters": GOOD.replace("n" * 22, "n" * 21),
    "nonce of 65 characters": GOOD.replace("n" * 22, "n" * 65),
    "nonce with other characters": GOOD.replace("n" * 22, "n" * 21 + "+"),
    "nonce as a number": re.sub('nonce="n+"', "nonce=12345678901234567890123", GOOD),
    "keyid of another method": GOOD.replace(DID, "did:web:example.com"),
    "keyid as an RFC 7638 thumbprint": GOOD.replace(DID, "poqkLGiymh_W0uP6PZFw-dvez3QJT5SolqXBCW38r0U"),
    "final newline": GOOD + "\n",
    "leading space": " " + GOOD,
    "trailing space": GOOD + " ",
    "space after a semicolon": GOOD.replace(";created", "; created"),
    "binary parameter": GOOD + ";x=:AAAA:",
    "empty": "",
}


@pytest.mark.parametrize("value", MISTAKES.values(), ids=MISTAKES.keys())
def test_each_known_mistake_is_malformed(value: str) -> None:
    assert value != GOOD
    with pytest.raises(Malformed):
        parse_signature_input(value)


def read_step_by_step(value: str) -> SignatureInput | None:
    """The grammar of 4.2 once more, cut into pieces and judged one after the other; None when it is broken."""
    shape = re.fullmatch(
        r'([a-z][a-z0-9_-]{0,31})=(\(("[^"]*"(?: "[^"]*")*)\)((?:;[a-z]+=(?:[0-9]+|"[^"]*"))+))', value
    )
    if shape is None:
        return None
    components = shape[3][1:-1].split('" "')
    pairs = re.findall(r';([a-z]+)=([0-9]+|"[^"]*")', shape[4])
    params = dict(pairs)
    times = [params.get(name, "") for name in ("created", "expires")]
    if (
        not all(re.fullmatch("@?[a-z][a-z0-9-]{0,31}", name) for name in components)
        or not len(components) == len(set(components)) <= 16
        or sorted(name for name, _ in pairs) != sorted(("created", "expires", "keyid", "alg", "nonce", "tag"))
        or (params["alg"], params["tag"]) != ('"ed25519"', '"tallystick-v1"')
        or not re.fullmatch('"did:key:z6Mk[1-9A-HJ-NP-Za-km-z]{44}"', params["keyid"])
        or not re.fullmatch('"[A-Za-z0-9_-]{22,64}"', params["nonce"])
        or not all(text.isascii() and text.isdigit() and len(text) <= 15 and str(int(text)) == text for text in times)
    ):
        return None
    created, expires = map(int, times)
    keyid, nonce = params["keyid"][1:-1], params["nonce"][1:-1]
    return SignatureInput(shape[1], tuple(components), shape[2], created, expires, keyid, nonce)


LABELS = [*["sig"] * 5, "s" * 32, "s" * 33, "S", ""]
PARTS = [f'"{name}"' for name in [*sorted(BODY_COMPONENTS), *"abcdefgh", "x" * 32, "x" * 33, "Date"]]
PIECES = [
    *PARAMS.split(";"), "created=0", "created=01", "expires=999999999999999", "expires=1000000000000000", 'alg="rsa"',
    f'nonce="{"n" * 64}"', f'nonce="{"n" * 65}"', f'nonce="{"n" * 10};{"n" * 12}"', 'tag=""', "tag=1", 'x="y"', "",
]  # fmt: skip


@st.composite
def inputs(draw: st.DrawFn) -> str:
    """Texts close to the grammar: parts left out, doubled, in any order, and now and then one character changed."""
    any_parts = st.lists(st.sampled_from(PARTS), min_size=1, max_size=17, unique=draw(st.booleans()))
    covered = draw(st.permutations(COVERED.split()) | st.lists(st.sampled_from(PARTS[:10]), unique=True) | any_parts)
    whole = st.permutations(PARAMS.split(";"))
    pieces = draw(whole | whole | st.lists(st.sampled_from(PIECES), min_size=5, max_size=7))
    value = f"{draw(st.sampled_from(LABELS))}=({' '.join(covered)});{';'.join(pieces)}"
    if draw(st.booleans()):
        return value
    place = draw(st.integers(0, len(value)))
    character: str = draw(st.sampled_from([*'";=() aA0\n\\٣é', ""]))
    return value[:place] + character + value[place + 1 :]


@settings(max_examples=600)
@given(inputs() | st.sampled_from([GOOD, *MISTAKES.values()]))
def test_the_one_expression_reads_exactly_what_the_steps_read(value: str) -> None:
    try:
        read: SignatureInput | None = parse_signature_input(value)
    except Malformed:
        read = None
    assert read == read_step_by_step(value)


FAULTS = [
    ("keyid missing", "parameter keyid"),
    ("parameter twice", "parameter created"),
    ("other alg", 'alg is needed: "ed25519"'),
    ("nonce of 65 characters", "nonce is needed: 22 to 64 characters"),
    ("component twice", "a component appears twice"),
    ("parameter unknown", "not just label=(components);created;expires;keyid;alg;nonce;tag"),
]


@pytest.mark.parametrize(("mistake", "words"), FAULTS)
def test_a_refused_input_is_told_which_part_to_change(mistake: str, words: str) -> None:
    with pytest.raises(Malformed, match=re.escape(words)):
        parse_signature_input(MISTAKES[mistake])


def test_a_covered_component_without_a_value_is_malformed_not_empty() -> None:
    """A missing Content-Digest treated as an empty string once let unsigned bodies through."""
    values = dict.fromkeys(BODY_COMPONENTS - {"content-digest"}, "v")
    with pytest.raises(Malformed):
        signature_base(parse_signature_input(GOOD), values)


def test_the_sets_of_components_are_the_profiles() -> None:
    assert READ_COMPONENTS == {"@method", "@authority", "@path", "@query", "tallystick-anchor"}
    assert BODY_COMPONENTS - READ_COMPONENTS == {"content-type", "content-digest", "idempotency-key"}
    assert READ_COMPONENTS < BODY_COMPONENTS


SIGNATURE = "sig=:" + "A" * 86 + "==:"


@pytest.mark.parametrize(
    "value",
    [
        SIGNATURE.replace("sig", "other"),
        SIGNATURE.replace("A==:", "B==:"),  # the same bytes, another spelling
        SIGNATURE.replace(":", ""),
        SIGNATURE + ", " + SIGNATURE,
        SIGNATURE + "\n",
        SIGNATURE.replace("==", ""),
        SIGNATURE.replace("A" * 4, "", 1),
        SIGNATURE.replace("AAAA", "AA-A", 1),
        "",
    ],
)
def test_a_signature_has_one_spelling_under_the_inputs_label(value: str) -> None:
    assert parse_signature(SIGNATURE, "sig") == bytes(64)
    with pytest.raises(Malformed):
        parse_signature(value, "sig")


def test_the_digest_of_an_empty_body_exists_too() -> None:
    assert content_digest(b"") == "sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:"


ROOT64 = maker.b64(bytes(32))


@pytest.mark.parametrize(
    "value",
    [
        f"{maker.ORIGIN} 0 {ROOT64}",
        f"{maker.ORIGIN} 01 {ROOT64}",
        f"{maker.ORIGIN} +1 {ROOT64}",
        f"{maker.ORIGIN}  1 {ROOT64}",
        f"{maker.ORIGIN} 1 {ROOT64}\n",
        f"{maker.ORIGIN} 1 {ROOT64[:-1]}",
        f"{maker.ORIGIN} 1 {ROOT64.replace('A=', 'B=')}",
        f"{maker.ORIGIN} 9007199254740992 {ROOT64}",
        f"https://{maker.ORIGIN} 1 {ROOT64}",
        f"{maker.ORIGIN} 1",
        "",
    ],
)
def test_an_anchor_has_one_spelling(value: str) -> None:
    assert parse_anchor(f"{maker.ORIGIN} 7 {ROOT64}") == Anchor(maker.ORIGIN, 7, bytes(32))
    with pytest.raises(Malformed):
        parse_anchor(value)


def test_an_idempotency_key_is_a_quoted_string_without_escapes() -> None:
    assert parse_idempotency_key('"a b!~"') == "a b!~"
    assert parse_idempotency_key('"' + "k" * 255 + '"') == "k" * 255
    for value in ("a", '""', '"' + "k" * 256 + '"', '"a"b"', '"a\\b"', '"é"', '"a"\n', "'a'"):
        with pytest.raises(Malformed):
            parse_idempotency_key(value)


def test_paths_and_queries_have_one_spelling() -> None:
    good = ["/", "/api/v1/acp/coordination/lease", "/a~b/c.d_e-f", "/a/"]
    bad = ["", "a", "//", "/a//b", "/./a", "/a/../b", "/.well-known", "/a%2Fb", "/a?b", "/a b", "/a\n", "/é", "*"]
    assert [path for path in [*good, *bad] if is_path(path)] == good
    good, bad = ["?", "?a=b&c=d", "?%41"], ["", "a", "?a#b", "?a b", "?\n", "?é"]
    assert [query for query in [*good, *bad] if is_query(query)] == good


def test_the_window_is_half_open_and_at_most_300_seconds_long() -> None:
    read = parse_signature_input(GOOD)
    first, end = 1_700_000_000_000 - 30_000, 1_700_000_015_000 + 30_000
    assert [is_inside_window(read.created, read.expires, t) for t in (first - 1, first, end - 1, end)] == [
        False,
        True,
        True,
        False,
    ]
    for expires, is_good in ((1700000000, False), (1700000001, True), (1700000300, True), (1700000301, False)):
        changed = parse_signature_input(GOOD.replace("1700000015", str(expires)))
        assert is_inside_window(changed.created, changed.expires, 1_700_000_000_000) is is_good


@given(st.text(alphabet=GOOD + "\\\n é٣", max_size=300) | st.text(max_size=80))
def test_any_text_is_an_input_or_malformed(value: str) -> None:
    for parse in (parse_signature_input, parse_anchor, parse_idempotency_key):
        try:
            parse(value)
        except Malformed:
            pass
    assert is_path(value) in (True, False) and is_query(value) in (True, False)


@given(st.integers(0, len(GOOD) - 1), st.characters())
def test_one_changed_character_is_malformed_or_signs_other_bytes(place: int, character: str) -> None:
    """No two spellings of an input share a signature base."""
    changed = GOOD[:place] + character + GOOD[place + 1 :]
    values = dict.fromkeys(BODY_COMPONENTS, "v")
    try:
        read = parse_signature_input(changed)
        base = signature_base(read, values)
    except Malformed:
        return
    same = base == signature_base(parse_signature_input(GOOD), values)
    assert same == (changed.partition("=")[2] == GOOD.partition("=")[2])
