"""The door: what it accepts, each way to be turned away, and each mistake of the field (identity.md 1.5) as a test."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from gateway.core.intake import (
    REJECTIONS,
    RawRequest,
    Rejection,
    SignedRequest,
    check_ttl,
    commands_of,
    intake,
    intake_read,
    is_inside_window,
)
from tests.core.requests import (
    AUTHORITIES,
    COMPONENTS,
    NOW_MS,
    NOW_S,
    ORIGIN,
    PARAMS,
    Ask,
    accept,
    acquire,
    add,
    admit,
    anchor_text,
    approved,
    ask,
    batch,
    chain,
    delegated,
    did_of,
    digest_of,
    give,
    key_of,
    open_session,
    proof_of,
    read,
    release,
    renew,
    statement,
    with_approvals,
)
from verifier.did import encode_did
from verifier.entries import BATCH_BODY_BYTES_MAX, MemberError, check_body
from verifier.sig import SMALL_ORDER
from verifier.wire import BODY_BYTES_MAX

Change = Callable[[dict[str, str]], Any]


def take(raw: RawRequest, action: str = "lease.acquire") -> SignedRequest:
    return intake(raw, origin=ORIGIN, authorities=AUTHORITIES, action=action)


def rejected(raw: RawRequest, action: str = "lease.acquire") -> tuple[str, int]:
    with pytest.raises(Rejection) as caught:
        take(raw, action)
    assert caught.value.detail, "a rejection says what to change"
    return caught.value.code, caught.value.status


def plain() -> Ask:
    return acquire("A", "repo:app/a.py", ttlMs=5_000)


def test_a_signed_request_becomes_exactly_what_was_signed() -> None:
    ask = plain().but(query="?dry=1", created=NOW_S - 3, expires=NOW_S + 9)
    headers = ask.headers()
    request = take(ask.raw())
    assert (request.action, request.method, request.authority) == ("lease.acquire", "POST", "gateway.example")
    assert (request.path, request.query) == ("/api/v1/acp/coordination/lease", "?dry=1")
    assert request.content_type == "application/json"
    assert request.idempotency_key == ask.idempotency_key
    assert (request.anchor.origin, request.anchor.size) == (ORIGIN, 1)
    assert request.anchor_text == headers["tallystick-anchor"]
    assert request.body_text == ask.body.decode()
    assert request.body == ask.members()
    assert request.signature_input == headers["signature-input"]
    assert request.signature_b64 == headers["signature"][len("sig=:") : -1]
    assert (request.keyid, request.created, request.expires) == (did_of("A"), NOW_S - 3, NOW_S + 9)
    assert request.nonce == ask.nonce
    assert request.actor == request.principal == request.on_behalf_of == did_of("A")


def test_every_order_of_components_and_parameters_is_read() -> None:
    """Whoever sorts or writes the parameters anew reads other bytes than were signed (httpsig#14, signify-ts#230)."""
    orders = random.Random(1)
    for order in itertools.islice(itertools.permutations(PARAMS), 0, 720, 7):
        components = tuple(orders.sample(COMPONENTS, len(COMPONENTS)))
        assert take(plain().but(params=order, components=components).raw()).keyid == did_of("A")


def test_any_label_is_read() -> None:
    """A hard-coded label is a mistake of the field (trusted-agent-protocol#21)."""
    assert take(plain().but(label="agent_2-x").raw()).signature_input.startswith("agent_2-x=(")


def test_header_names_in_any_case_and_headers_of_proxies_are_read() -> None:
    raw = plain().raw()
    headers = tuple((name.title(), value) for name, value in raw.headers)
    headers += (("Via", "1.1 a"), ("via", "1.1 b"), ("X-Forwarded-Host", "evil.example"))
    assert take(RawRequest("POST", raw.authority, raw.raw_path, "?", headers, raw.body)).authority == "gateway.example"


@pytest.mark.parametrize("host", ["GATEWAY.example", "gateway.example:443", "gateway.example:80"])
def test_the_authority_is_lower_case_without_a_default_port(host: str) -> None:
    assert take(plain().raw(authority=host)).authority == "gateway.example"


@pytest.mark.parametrize("host", ["[::1]:443", "[::1]:80", "[::1]"])
def test_an_ipv6_address_in_brackets_is_a_host_without_a_port(host: str) -> None:
    raw = plain().but(authority="[::1]").raw(authority=host)
    assert intake(raw, origin=ORIGIN, authorities=("[::1]",), action="lease.acquire").authority == "[::1]"


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("127.0.0.1:18420:443", "127.0.0.1:18420"),
        ("gateway.example:443:443", "gateway.example:443"),
        ("::1:443", "::1"),
        ("[::1]:8443:443", "[::1]:8443"),
        ("x[::1]:443", "x[::1]"),
        ("[::1]x:80", "[::1]x"),
        ("gateway.example:8080", "gateway.example"),
    ],
)
def test_a_port_is_dropped_from_a_host_alone(host: str, known: str) -> None:
    raw = plain().but(authority=known).raw(authority=host)
    with pytest.raises(Rejection) as caught:
        intake(raw, origin=ORIGIN, authorities=(known,), action="lease.acquire")
    assert caught.value.code == "authority_wrong"


def without(name: str) -> Change:
    return lambda headers: headers.pop(name)


def set_to(name: str, value: str) -> Change:
    return lambda headers: headers.__setitem__(name, value)


def edit(name: str, old: str, new: str) -> Change:
    def change(headers: dict[str, str]) -> None:
        assert old in headers[name]
        headers[name] = headers[name].replace(old, new)

    return change


def body_of(**changes: Any) -> bytes:
    return json.dumps({**plain().members(), **changes}).encode()


def signed_over(value: Any) -> RawRequest:
    """A request rightly signed over a body that is wrong."""
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return plain().but(body=body).raw()


def twice(name: str, spelled: str | None = None) -> RawRequest:
    raw = plain().raw()
    again = (spelled or name, dict(raw.headers)[name])
    return RawRequest("POST", raw.authority, raw.raw_path, "?", (*raw.headers, again), raw.body)


BIG = json.dumps({**plain().members(), "resources": ["repo:" + "x" * 250] * 100}).encode()

# (what is wrong, the request, the code); at least one row for every code of REJECTIONS.
REJECTED: list[tuple[str, Callable[[], RawRequest], str]] = [
    ("no Signature-Input", lambda: plain().raw(without("signature-input")), "signature_missing"),
    ("no Signature", lambda: plain().raw(without("signature")), "signature_missing"),
    ("empty Signature-Input", lambda: plain().raw(set_to("signature-input", "")), "signature_malformed"),
    ("two members", lambda: plain().raw(lambda h: h.update({"signature-input": h["signature-input"] * 2})),
     "signature_malformed"),
    ("another label in Signature", lambda: plain().raw(edit("signature", "sig=", "gis=")), "signature_malformed"),
    ("another tag", lambda: plain().but(tag="web-bot-auth").raw(), "signature_malformed"),
    ("another algorithm", lambda: plain().but(alg="ml-dsa-44").raw(), "signature_malformed"),
    ("a parameter less", lambda: plain().but(params=PARAMS[:-2] + PARAMS[-1:]).raw(), "signature_malformed"),
    ("a parameter twice", lambda: plain().but(params=(*PARAMS, "created")).raw(), "signature_malformed"),
    ("a short nonce", lambda: plain().but(nonce="abc").raw(), "signature_malformed"),
    ("a created with a sign", lambda: plain().raw(edit("signature-input", "created=", "created=+")),
     "signature_malformed"),
    ("a created with a leading zero", lambda: plain().raw(edit("signature-input", "created=", "created=0")),
     "signature_malformed"),
    ("a keyid that is no did:key", lambda: plain().but(keyid="agent-7").raw(), "signature_malformed"),
    ("a component parameter", lambda: plain().raw(edit("signature-input", '"@path"', '"@path";req')),
     "signature_malformed"),
    ("a component twice", lambda: plain().but(components=(*COMPONENTS, "@path")).raw(), "signature_malformed"),
    ("a line break", lambda: plain().raw(lambda h: h.update(signature=h["signature"] + "\n")),
     "signature_malformed"),
    ("a component less", lambda: plain().but(components=COMPONENTS[:-1]).raw(set_to("tallystick-anchor", "x")),
     "components_wrong"),
    ("digest not covered", lambda: plain().but(components=tuple(c for c in COMPONENTS if c != "content-digest"))
     .raw(set_to("content-digest", digest_of(plain().body))), "components_wrong"),
    ("coverage of a read", lambda: plain().but(components=COMPONENTS[:4] + COMPONENTS[7:]).raw(), "components_wrong"),
    ("another host", lambda: plain().raw(authority="evil.example"), "authority_wrong"),
    ("another port", lambda: plain().raw(authority="gateway.example:8080"), "authority_wrong"),
    ("no host", lambda: plain().raw(authority=""), "authority_wrong"),
    ("a port alone", lambda: plain().raw(authority=":443"), "authority_wrong"),
    ("another action's path", lambda: plain().raw(raw_path="/api/v1/acp/coordination/renew"), "path_wrong"),
    ("an encoded path", lambda: plain().raw(raw_path="/api/v1/acp/coordination%2Flease"), "path_wrong"),
    ("a doubled slash", lambda: plain().raw(raw_path="/api/v1/acp//coordination/lease"), "path_wrong"),
    ("a fragment", lambda: plain().raw(query="?a#b"), "path_wrong"),
    ("no question mark", lambda: plain().raw(query=""), "path_wrong"),
    ("another method", lambda: plain().raw(method="PUT"), "path_wrong"),
    ("another content type", lambda: plain().raw(set_to("content-type", "text/plain")), "content_type_wrong"),
    ("a content type with a parameter", lambda: plain().but(content_type="application/json; charset=utf-8").raw(),
     "content_type_wrong"),
    ("no content type", lambda: plain().raw(without("content-type")), "content_type_wrong"),
    ("no idempotency key", lambda: plain().raw(without("idempotency-key")), "idempotency_key_missing"),
    ("a bare idempotency key", lambda: plain().raw(set_to("idempotency-key", "abc")), "idempotency_key_malformed"),
    ("an empty idempotency key", lambda: plain().but(idempotency_key="").raw(), "idempotency_key_malformed"),
    ("a long idempotency key", lambda: plain().but(idempotency_key="x" * 256).raw(), "idempotency_key_malformed"),
    ("no anchor", lambda: plain().raw(without("tallystick-anchor")), "anchor_missing"),
    ("an anchor of size 0", lambda: plain().but(anchor=anchor_text(size=0)).raw(), "anchor_malformed"),
    ("an anchor with two spaces", lambda: plain().but(anchor=anchor_text().replace(" ", "  ")).raw(),
     "anchor_malformed"),
    ("an anchor with a short root", lambda: plain().but(anchor=f"{ORIGIN} 1 AAAA").raw(), "anchor_malformed"),
    ("an anchor of another ledger", lambda: plain().but(anchor=anchor_text(origin="other.example/x")).raw(),
     "wrong_anchor"),
    ("no digest", lambda: plain().raw(without("content-digest")), "digest_missing"),
    ("an empty digest", lambda: plain().raw(set_to("content-digest", "")), "digest_mismatch"),
    ("a digest of another algorithm", lambda: plain().raw(edit("content-digest", "sha-256", "md5")),
     "digest_mismatch"),
    ("two digests", lambda: plain().raw(lambda h: h.update({"content-digest": h["content-digest"] + ", x=:AA==:"})),
     "digest_mismatch"),
    ("a changed body", lambda: plain().raw(body=body_of(ttlMs=6_000)), "digest_mismatch"),
    ("a changed body with its own digest", lambda: plain().raw(
        set_to("content-digest", digest_of(body_of(ttlMs=6_000))), body=body_of(ttlMs=6_000)), "signature_invalid"),
    ("a large body", lambda: signed_over(BIG), "body_too_large"),
    ("not JSON", lambda: signed_over(b"resource=x"), "body_malformed"),
    ("an empty body", lambda: signed_over(b""), "body_malformed"),
    ("a list", lambda: signed_over([1]), "body_malformed"),
    ("not UTF-8", lambda: signed_over(b'{"a":"\xff"}'), "body_malformed"),
    ("a member twice", lambda: signed_over(body_of()[:-1] + b', "ttlMs": 9000}'), "body_malformed"),
    ("a float", lambda: signed_over({**plain().members(), "ttlMs": 5_000.0}), "body_malformed"),
    ("deep nesting", lambda: signed_over(b'{"a":' * 9 + b"1" + b"}" * 9), "body_malformed"),
    ("a member missing", lambda: signed_over({"ledger": ORIGIN, "resource": "repo:x"}), "member_missing"),
    ("a member unknown", lambda: signed_over({**plain().members(), "note": "hello"}), "member_unknown"),
    ("a ttl too small", lambda: signed_over({**plain().members(), "ttlMs": 999}), "member_invalid"),
    ("a ttl too large", lambda: signed_over({**plain().members(), "ttlMs": 3_600_001}), "member_invalid"),
    ("a wildcard", lambda: signed_over({**plain().members(), "resource": "repo:app/*.py"}), "member_invalid"),
    ("a name in another form than NFC", lambda: signed_over({**plain().members(), "resource": "doc:a\u0308"}),
     "member_invalid"),
    ("patience without waiting", lambda: signed_over({**plain().members(), "giveUpMs": 5_000}), "member_conflict"),
    ("a deadlock without waiting", lambda: signed_over({**plain().members(), "onDeadlock": "wait", "wait": False}),
     "member_conflict"),
    ("seventeen names to wait for", lambda: acquire("A", *(f"repo:{n}" for n in range(17)), wait=True).raw(),
     "member_conflict"),
    ("one and several", lambda: signed_over({**plain().members(), "resources": ["repo:y"]}), "member_conflict"),
    ("another's key in the body", lambda: signed_over({**plain().members(), "actorDid": did_of("B")}),
     "actor_mismatch"),
    ("another ledger", lambda: signed_over({**plain().members(), "ledger": "other.example/x"}), "wrong_ledger"),
    ("a signature by another key", lambda: plain().but(keyid=did_of("B")).raw(), "signature_invalid"),
    ("a signature of zeros", lambda: plain().raw(set_to("signature", f"sig=:{'A' * 86}==:")), "signature_invalid"),
    ("another query", lambda: plain().raw(query="?x=1"), "signature_invalid"),
    ("a key with a flipped character", lambda: plain().but(keyid=did_of("A")[:-1] + "1").raw(), "key_malformed"),
    ("authorization", lambda: plain().raw(set_to("authorization", "Bearer x")), "authorization_present"),
    ("a compressed body", lambda: plain().raw(set_to("content-encoding", "gzip")), "encoded_body"),
    ("identity encoding", lambda: plain().raw(set_to("content-encoding", "identity")), "encoded_body"),
    ("two hosts", lambda: twice("host"), "header_repeated"),
    ("two digests in two cases", lambda: twice("content-digest", "Content-DIGEST"), "header_repeated"),
    ("two signatures", lambda: twice("signature"), "header_repeated"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "code"), [row[1:] for row in REJECTED], ids=[row[0] for row in REJECTED])
def test_what_is_wrong_is_turned_away_by_name(make: Callable[[], RawRequest], code: str) -> None:
    assert rejected(make()) == (code, REJECTIONS[code])


# Of requests that bring a signature of somebody else along; what has no signature is the bearer door's.
BROUGHT: list[tuple[str, str, Callable[[], Ask], str]] = [
    ("an enrolment that another key proved", "agent.add", lambda: enrolment("new", proof=proof_of("other", DIGEST)),
     "proof_invalid"),
    ("a proof for another API key", "agent.add", lambda: enrolment("new", proof=proof_of("new", "b" * 64)),
     "proof_invalid"),
    ("delegations to another key", "session.open", lambda: open_session("S2", chain("A", "S1")), "delegation_invalid"),
    ("a statement that somebody else signed", "session.open",
     lambda: open_session("S1", [delegated("B", statement("A", "S1"))]), "delegation_invalid"),
    ("statements in the wrong order", "session.open", lambda: open_session("S1", chain("op", "A", "S1")[::-1]),
     "delegation_invalid"),
    ("a statement of another shape", "session.open",
     lambda: open_session("S1", [delegated("A", {**statement("A", "S1"), "colour": "red"})]), "delegation_invalid"),
    ("an approval that somebody else signed", "coordination.admit", lambda: approving("X", approver=did_of("Y")),
     "approval_invalid"),
    ("an approval of another shape", "coordination.admit", lambda: approving("X", colour="red"), "approval_invalid"),
    ("an approval for longer than a week", "coordination.admit",
     lambda: approving("X", expiresAtMs=NOW_MS + 604_800_000), "approval_invalid"),
    ("an approval that ends before it begins", "coordination.admit", lambda: approving("X", expiresAtMs=NOW_MS - 1_000),
     "approval_invalid"),
    ("an approval given that was changed", "approval.give", lambda: give("X", "A1", tampered()), "approval_invalid"),
    ("an approval in a command", "batch.submit", lambda: batch("A", approving("X", approver=did_of("Y"))),
     "approval_invalid"),
    ("more statements than a body may have", "session.open", lambda: open_session("S1", chain("A", "S1") * 4),
     "member_invalid"),
]  # fmt: skip
DIGEST = "a" * 64


def approving(by: str, /, **changes: Any) -> Ask:
    """Ask for an admission that somebody approves, by a statement with changes."""
    asked = admit("A", "repo:x", mode="read")
    return with_approvals(asked, approved(by, asked, "0" * 64, **changes))


def tampered() -> dict[str, Any]:
    """Return an approval whose statement was changed after it was signed."""
    approval = approved("X", admit("A", "repo:x"), "0" * 64)
    return {**approval, "statement": {**approval["statement"], "operation": "file.delete"}}


def enrolment(agent: str, *, proof: str) -> Ask:
    return ask("agent.add", "enroller", agent=did_of(agent), keyDigest=DIGEST, proof=proof)


@pytest.mark.parametrize(("action", "make", "code"), [row[1:] for row in BROUGHT], ids=[row[0] for row in BROUGHT])
def test_what_others_signed_is_judged_too(action: str, make: Callable[[], Ask], code: str) -> None:
    assert rejected(make().raw(), action) == (code, REJECTIONS[code])


def test_a_session_comes_with_what_it_was_lent() -> None:
    request = take(open_session("S1", chain("op", "A", "S1", verbs=["lease"])).raw(), "session.open")
    assert [(one.iss, one.sub, one.verbs) for one in request.delegations] == [
        (did_of("op"), did_of("A"), ("admit", "lease", "transfer")), (did_of("A"), did_of("S1"), ("lease",)),
    ]  # fmt: skip
    assert take(plain().raw()).delegations == ()


def test_approvals_come_with_the_request_or_the_command_they_are_for() -> None:
    one, two = approving("X"), approving("Y")
    assert [it.approver for it in take(one.raw(), "coordination.admit").approvals] == [did_of("X")]
    given = take(give("X", "A1", two.members()["approvals"][0]).raw(), "approval.give")
    assert [it.approver for it in given.approvals] == [did_of("Y")]  # that it is another's, the ledger says
    whole = take(batch("A", acquire("A", "repo:x"), one, two).raw(), "batch.submit")
    parts = [[it.approver for it in part.approvals] for part in commands_of(whole)]
    assert (whole.approvals, parts) == ((), [[], [did_of("X")], [did_of("Y")]])


def test_an_enrolment_that_the_new_key_proved_passes() -> None:
    assert take(enrolment("new", proof=proof_of("new", DIGEST)).raw(), "agent.add").body["agent"] == did_of("new")


def test_every_code_of_the_table_has_a_case() -> None:
    cases = {code for *_, code in REJECTED} | {code for *_, code in BROUGHT}
    of_the_desk = {
        "token_invalid", "key_statement_invalid", "key_unready", "rules_invalid", "rules_unready", "rules_unchecked",
    }  # fmt: skip
    assert cases == set(REJECTIONS) - of_the_desk


def test_only_a_batch_may_be_longer_than_other_bodies() -> None:
    """Each command is small, and there are many."""
    commands = [acquire("A", f"repo:{'q' * 100}/{number}") for number in range(200)]
    made = batch("A", *commands)
    assert BODY_BYTES_MAX < len(made.body)
    assert len(json.dumps(made.body.decode())) <= BATCH_BODY_BYTES_MAX
    assert len(commands_of(take(made.raw(), "batch.submit"))) == 200
    longer = batch("A", *[acquire("A", f"repo:{'q' * 200}/{number}") for number in range(200)])
    assert rejected(longer.raw(), "batch.submit") == ("body_too_large", 413)
    padded = acquire("A", "repo:x").body + b" " * BODY_BYTES_MAX
    assert rejected(plain().but(body=padded).raw()) == ("body_too_large", 413)


@pytest.mark.parametrize("count", [0, 257])
def test_a_batch_has_1_to_256_commands(count: int) -> None:
    made = batch("A", *[release("A", "a:b") for _ in range(count)])
    assert rejected(made.raw(), "batch.submit") == ("member_invalid", 400)


def test_a_fault_in_a_batch_says_in_which_command() -> None:
    made = batch("A", acquire("A", "a:b"), acquire("A", "a:c", ttlMs=1))
    with pytest.raises(Rejection, match=r"commands\[1\].*ttlMs"):
        take(made.raw(), "batch.submit")


def test_the_size_of_a_body_counts_as_a_json_string() -> None:
    """Evidence is a string in the leaf, so quotes count twice: every leaf must fit."""
    names = [f"repo:{'q' * 60}/{n}" for n in range(200)]
    text = json.dumps({**plain().members(), "resources": names})
    body = text.replace('"resource": "repo:app/a.py", ', "")
    padded = body + " " * (BODY_BYTES_MAX - len(body) - 100)
    assert len(padded.encode()) < BODY_BYTES_MAX < len(json.dumps(padded).encode())
    assert rejected(signed_over(padded.encode())) == ("body_too_large", 413)
    assert len(take(signed_over(body.encode())).body["resources"]) == 200  # type: ignore[arg-type]


def test_a_request_reads_its_body_with_the_defaults_of_its_action() -> None:
    asked = acquire("A", "repo:b", "repo:a", wait=True).signed()
    assert asked.resources == ("repo:a", "repo:b")
    assert (asked.text("mode"), asked.number("ttlMs"), asked.flag("wait")) == ("write", 30_000, True)
    assert (asked.number("giveUpMs"), asked.text("onDeadlock")) == (3_600_000, "refuse")
    assert acquire("A", "repo:a").signed().flag("wait") is False
    changed = renew("A", "L5", mode="read").signed()
    assert changed.repeat("leaseId", "ttlMs", "mode") == {"leaseId": "L5", "ttlMs": 30_000, "mode": "read"}
    assert renew("A", "L5").signed().repeat("leaseId", "mode") == {"leaseId": "L5"}, "a renewal has no default mode"
    with pytest.raises(AssertionError, match="a checked body"):
        asked.number("mode")


@pytest.mark.parametrize(
    ("make", "is_bounded"),
    [
        (lambda ttl: acquire("A", "repo:a", ttlMs=ttl), True),
        (lambda ttl: renew("A", "L5", ttlMs=ttl), True),
        (lambda ttl: accept("A", "L5", ttlMs=ttl), True),
        (lambda ttl: release("A", "repo:a"), False),
    ],
)
def test_a_ledger_has_its_own_bounds_of_a_ttl(make: Callable[[int], Ask], is_bounded: bool) -> None:
    for ttl_ms, fits in ((4_999, False), (5_000, True), (9_000, True), (9_001, False)):
        request = make(ttl_ms).signed()
        if fits or not is_bounded:
            check_ttl(request, 5_000, 9_000)
            continue
        with pytest.raises(Rejection, match="ttlMs must be 5,000 to 9,000"):
            check_ttl(request, 5_000, 9_000)


def test_each_body_error_keeps_the_tables_own_code() -> None:
    for body in ({}, {"ledger": 1}):
        with pytest.raises(MemberError) as caught:
            check_body("lease.acquire", body)  # type: ignore[arg-type]
        assert rejected(signed_over(body)) == (caught.value.code, 400)


# --- strict keys ----------------------------------------------------------------------------------------------------

P = 2**255 - 19
MIXED_ORDER_KEY = bytes.fromhex("9599999999999999999999999999999999999999999999999999999999999999")
NOT_CANONICAL = (P + 3).to_bytes(32, "little")


def with_key(public_key: bytes, signature: bytes) -> RawRequest:
    """A request whose keyid and actorDid are `public_key`, under a ready-made signature."""
    did = encode_did(public_key)
    body = json.dumps({**plain().members(), "actorDid": did}).encode()
    return plain().but(body=body, keyid=did).raw(set_to("signature", f"sig=:{base64.b64encode(signature).decode()}:"))


@pytest.mark.parametrize("key", [*sorted(SMALL_ORDER), MIXED_ORDER_KEY, NOT_CANONICAL], ids=bytes.hex)
def test_a_key_of_small_or_mixed_order_or_second_spelling_is_malformed(key: bytes) -> None:
    if not encode_did(key).startswith("did:key:z6Mk"):
        pytest.fail("every Ed25519 did:key begins alike, so the grammar can't be what refuses it")
    assert rejected(with_key(key, bytes(64))) == ("key_malformed", 401)


def test_the_identity_key_for_which_one_signature_fits_all_messages_is_refused() -> None:
    """OpenSSL accepts the identity point as a key; then R = identity, S = 0 signs every message ever sent."""
    identity = b"\x01" + bytes(31)
    constant = identity + bytes(32)
    lax = Ed25519PublicKey.from_public_bytes(identity)
    lax.verify(constant, b"any message at all")
    lax.verify(constant, b"and any other")
    assert rejected(with_key(identity, constant)) == ("key_malformed", 401)


def test_a_signature_with_s_plus_l_is_refused() -> None:
    order = 2**252 + 27742317777372353535851937790883648493
    ask = plain()
    signature = ask.key.sign(ask.base())
    s = int.from_bytes(signature[32:], "little") + order
    second = base64.b64encode(signature[:32] + s.to_bytes(32, "little")).decode()
    assert rejected(ask.raw(set_to("signature", f"sig=:{second}:"))) == ("signature_invalid", 401)


# --- mistakes of the field, one test for each row of identity.md 1.5 -------------------------------------------------


def test_mistake_body_never_compared_with_its_digest() -> None:
    """httpsig-org#20, go-fed/httpsig#6, requests-http-signature#10, rafiki#654."""
    assert rejected(plain().raw(body=body_of(resource="repo:other"))) == ("digest_mismatch", 400)


def test_mistake_missing_digest_taken_for_an_empty_one() -> None:
    """Gitlawb/node#306: an unsigned body passed."""
    uncovered = plain().but(components=tuple(c for c in COMPONENTS if c != "content-digest"))
    assert rejected(uncovered.raw()) == ("components_wrong", 400)
    assert rejected(plain().raw(without("content-digest"))) == ("digest_missing", 400)


def test_mistake_signature_params_left_out_of_the_base() -> None:
    """trusted-agent-protocol#21: without that line, time and nonce are not signed at all."""
    ask = plain()
    base = ask.base().rpartition(b"\n")[0]
    signature = base64.b64encode(ask.key.sign(base)).decode()
    assert rejected(ask.raw(set_to("signature", f"sig=:{signature}:"))) == ("signature_invalid", 401)


def test_mistake_parameters_written_anew() -> None:
    """common-fate/httpsig#14, jbowes/httpsig#22, signify-ts#230: the received text is what is signed."""
    ask = plain()
    other = ask.but(params=tuple(reversed(PARAMS)))
    assert rejected(ask.raw(set_to("signature-input", other.headers()["signature-input"])))[0] == "signature_invalid"


def test_mistake_duplicate_components() -> None:
    """HyperBEAM#622."""
    assert rejected(plain().but(components=(*COMPONENTS, "@method")).raw()) == ("signature_malformed", 400)


def test_mistake_text_search_for_the_label() -> None:
    """adcp#2495: `sig=` inside a quoted string is not a member."""
    ask = plain()
    hidden = edit("signature-input", "sig=", 'x="sig=";')
    assert rejected(ask.raw(hidden)) == ("signature_malformed", 400)
    assert rejected(ask.raw(edit("signature", "sig=:", 'x="sig=:";sig=:'))) == ("signature_malformed", 400)


def test_mistake_redirected_signature_and_mixed_case_duplicates() -> None:
    """vlang#27113: a signature that a redirect carried to another host or path is void there."""
    assert rejected(plain().raw(authority="127.0.0.1:8443")) == ("signature_invalid", 401)
    assert rejected(renew("A", "L5").raw(), "lease.acquire") == ("path_wrong", 400)
    assert rejected(twice("idempotency-key", "Idempotency-Key")) == ("header_repeated", 400)


@pytest.mark.parametrize("name", ["created", "expires", "nonce"])
def test_mistake_no_binding_of_time_nonce_or_path(name: str) -> None:
    """neotoma#2214, wordpress-activitypub#3212: each is signed, and each must be there."""
    ask = plain()
    less = ask.but(params=tuple(p for p in PARAMS if p != name))
    assert rejected(less.raw()) == ("signature_malformed", 400)
    moved = ask.but(created=ask.created + 1, expires=ask.expires + 1, nonce="m" * 22)
    header = set_to("signature-input", moved.headers()["signature-input"])
    assert rejected(ask.raw(header)) == ("signature_invalid", 401)


def test_mistake_key_chosen_by_keyid_alone() -> None:
    """web-bot-auth#58: who acts is named in the signed body too, and both must be the key."""
    theirs = json.dumps({**plain().members(), "actorDid": did_of("B")}).encode()
    assert rejected(plain().but(body=theirs).raw()) == ("actor_mismatch", 403)


def test_mistake_duplicate_host_accepted() -> None:
    """CVE-2026-34525."""
    raw = plain().raw()
    headers = (*raw.headers, ("Host", "evil.example"))
    assert rejected(RawRequest("POST", raw.authority, raw.raw_path, "?", headers, raw.body))[0] == "header_repeated"


# --- fingerprint, window, reads -------------------------------------------------------------------------------------


def test_the_fingerprint_is_of_method_path_query_and_body() -> None:
    ask = plain()
    digest = digest_of(ask.body)
    expected = hashlib.sha256(f"POST\n{ask.path}\n?\n{digest}".encode()).hexdigest()
    assert take(ask.raw()).fingerprint == take(ask.again().raw()).fingerprint == expected
    others = [ask.but(query="?x"), ask.but(body=body_of(ttlMs=7_000))]
    assert expected not in {take(other.raw()).fingerprint for other in others}


@pytest.mark.parametrize(
    ("created", "expires", "now_ms", "inside"),
    [
        (100, 160, 70_000, True),
        (100, 160, 69_999, False),
        (100, 160, 189_999, True),
        (100, 160, 190_000, False),
        (100, 400, 100_000, True),
        (100, 401, 100_000, False),
        (100, 100, 100_000, False),
        (100, 99, 100_000, False),
    ],
)
def test_the_window_is_half_open_and_lasts_at_most_300_seconds(
    created: int, expires: int, now_ms: int, inside: bool
) -> None:
    request = take(plain().but(created=created, expires=expires).raw())
    assert is_inside_window(request, now_ms, 30_000) is inside


WAIT = "/api/v1/acp/coordination/wait"


def test_a_signed_read_is_verified_and_keeps_nothing_but_who_and_when() -> None:
    ask = read("A", WAIT, query="?resource=repo:x")
    signed = intake_read(ask.raw(), origin=ORIGIN, authorities=AUTHORITIES)
    assert (signed.keyid, signed.authority) == (did_of("A"), "gateway.example")
    assert (signed.path, signed.query, signed.nonce) == (WAIT, "?resource=repo:x", ask.nonce)
    assert is_inside_window(signed, NOW_MS, 30_000) and not is_inside_window(signed, NOW_MS + 45_000, 30_000)


def test_a_signed_head_is_a_read_too_and_no_get() -> None:
    head = read("A", WAIT, method="HEAD").raw()
    assert intake_read(head, origin=ORIGIN, authorities=AUTHORITIES).keyid == did_of("A")
    with pytest.raises(Rejection, match="signature_invalid"):
        intake_read(head._replace(method="GET"), origin=ORIGIN, authorities=AUTHORITIES)


READS: list[tuple[str, Callable[[], RawRequest], str]] = [
    ("a body", lambda: read("A", WAIT).raw(body=b"{}"), "body_malformed"),
    ("another path", lambda: read("A", WAIT).raw(raw_path="/api/v1/acp/agents"), "signature_invalid"),
    ("an encoded path", lambda: read("A", "/a%2Fb").raw(), "path_wrong"),
    ("a post", lambda: read("A", WAIT, method="POST").raw(), "path_wrong"),
    ("another query", lambda: read("A", WAIT).raw(query="?a"), "signature_invalid"),
    ("coverage of a mutation", lambda: plain().raw(), "components_wrong"),
    ("another ledger", lambda: read("A", WAIT, anchor=anchor_text(origin="o.example/x")).raw(), "wrong_anchor"),
    ("no anchor", lambda: read("A", WAIT).raw(without("tallystick-anchor")), "anchor_missing"),
    ("authorization", lambda: read("A", WAIT).raw(set_to("authorization", "x")), "authorization_present"),
    ("no signature", lambda: read("A", WAIT).raw(without("signature")), "signature_missing"),
]


@pytest.mark.parametrize(("make", "code"), [row[1:] for row in READS], ids=[row[0] for row in READS])
def test_a_read_is_turned_away_by_the_same_rules(make: Callable[[], RawRequest], code: str) -> None:
    with pytest.raises(Rejection) as caught:
        intake_read(make(), origin=ORIGIN, authorities=AUTHORITIES)
    assert (caught.value.code, caught.value.status) == (code, REJECTIONS[code])


def test_an_operators_request_is_read_by_its_own_action() -> None:
    raw = add("op", "A", name="worker-1").raw()
    assert take(raw, "agent.add").body["name"] == "worker-1"
    assert rejected(raw, "agent.remove") == ("path_wrong", 400)


def test_the_seed_of_a_key_never_shows() -> None:
    """A rejection's text holds no value that came in: it may be a secret sent by mistake."""
    with pytest.raises(Rejection) as caught:
        take(signed_over({**plain().members(), "ttlMs": "hunter2-secret"}))
    assert "hunter2" not in str(caught.value)
    assert key_of("A").did not in str(caught.value)
