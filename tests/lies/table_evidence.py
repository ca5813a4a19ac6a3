"""Lies of evidence: a genuine signature for what was never asked, a request put where it does not belong, or twice."""

from __future__ import annotations

import base64
import json
from typing import Any

from tests.core.requests import (
    ENROLLER,
    READ_COMPONENTS,
    Ask,
    acquire,
    anchor_text,
    did_of,
    enrol,
    key_of,
    read,
    release,
)
from tests.lies.kit import House, Lie, Telling
from tests.verifier import maker

NAME, FREE = "repo:a", "repo:free"


# --- the honest ledgers ---------------------------------------------------------------------------------------------


def one_held() -> House:
    """A holds one, B another."""
    house = House()
    house.hold("A", NAME, ttlMs=60_000)
    house.hold("B", "repo:b", ttlMs=60_000)
    return house


def enrolled() -> House:
    """T enrols by API key."""
    house = House()
    house.say(enrol("T", house.key("live", "live")))
    return house


# --- the lies -------------------------------------------------------------------------------------------------------


def grant(t: Telling, ask: Ask, **members: Any) -> int:
    """Write a grant of FREE for which any request is the evidence."""
    time_ms = t.house.t_ms
    token = t.record("ledger/token").value + 1
    lease = {
        "resources": [FREE],
        "mode": "write",
        "schemes": [{"name": "repo", "class": "exclusive", "isFolding": False}],
        "leaseId": f"L{len(t.entries)}",
        "fencingToken": max(time_ms * 1_000, token),
        "ttlMs": 30_000,
        "expiresAtMs": time_ms + 30_000,
        "holdUntilMs": time_ms + 3_600_000,
    }
    return t.answer(ask, "lease.granted", **lease | members)


def _asked(t: Telling, **changes: Any) -> int:
    """A grant on a request that is honest but for `changes`, signed by A as they are."""
    return grant(t, t.sign(acquire("A", FREE)).but(**changes))


def _body(t: Telling) -> int:
    """The body names what A did not ask for, as the grant does."""
    place = t.at("lease.granted", 0)
    request = t.entries[place]["request"]
    return t.edit(place, resources=["repo:z"], request=request | {"body": request["body"].replace(NAME, "repo:z")})


def _longer(t: Telling) -> int:
    """A's body keeps its words, and the grant says another thing."""
    return t.edit(t.at("lease.granted", 0), resources=["repo:z"])


def _foreign(t: Telling) -> int:
    """What B signed is shown as a wish of A."""
    place = t.at("lease.granted", 1)
    return t.edit(place, actor=did_of("A"), principal=did_of("A"))


def _own_signature(t: Telling) -> int:
    """The gateway signs with its own key what A should have asked."""
    ask = t.sign(acquire("A", FREE))
    return grant(t, ask.but(key=key_of(ENROLLER), keyid=did_of("A")), **_sides("A"))


def _sides(name: str) -> dict[str, str]:
    return {"actor": did_of(name), "principal": did_of(name), "onBehalfOf": did_of("op")}


def _other_key(t: Telling) -> int:
    """B signs, and calls itself B; the entry calls it A."""
    return grant(t, t.sign(acquire("B", FREE)), **_sides("A"))


def _get(t: Telling) -> int:
    ask = t.house.anchored(t.house.now(read("A", "/api/v1/acp/coordination/leases")))
    return grant(t, ask.but(idempotency_key="k" * 22))


def _get_with_body(t: Telling) -> int:
    return _asked(t, method="GET")


def _release(t: Telling) -> int:
    return grant(t, t.sign(release("A", FREE)))


def _other_ledger(t: Telling) -> int:
    """A genuine request of A, to another ledger of the same gateway."""
    other = "gateway.example/other"
    body = json.dumps({"ledger": other, "actorDid": did_of("A"), "resource": FREE}).encode()
    return _asked(t, body=body, anchor=anchor_text(other, 1, bytes(32)))


def _other_history(t: Telling) -> int:
    """A has seen a history in which entry 7 was another, and signs so; the request is put into this one."""
    forked = maker.Ledger(leaves=[*t.leaves()[:7], maker.canonical({"forked": True})])
    return _asked(t, anchor=anchor_text(size=8, root=forked.root(8)))


def _ahead(t: Telling) -> int:
    """A has seen more entries than there are."""
    return _asked(t, anchor=anchor_text(size=500, root=bytes(32)))


def _other_genesis(t: Telling) -> int:
    return _asked(t, anchor=anchor_text(size=1, root=bytes(32)))


def _replayed(t: Telling) -> int:
    """What A asked once is granted once more, when it has given it back."""
    first = t.house.now(acquire("A", FREE))
    t.go_on(lambda house: house.say(first))
    t.go_on(lambda house: house.free("A", t.own(len(t.entries) - 1)["leaseId"]))
    return grant(t, t.sign(first))


def _same_nonce(t: Telling) -> int:
    """A's nonce stands below two different requests."""
    first = t.house.now(acquire("A", "repo:c"))
    t.go_on(lambda house: house.say(first))
    return grant(t, t.sign(acquire("A", FREE)).but(nonce=first.nonce))


def _same_idempotency(t: Telling) -> int:
    """A signed its request anew, to hear the same answer, and was decided again."""
    first = t.house.now(acquire("A", FREE))
    t.go_on(lambda house: house.say(first))
    t.go_on(lambda house: house.free("A", t.own(len(t.entries) - 1)["leaseId"]))
    return grant(t, t.sign(first.again()))


def _late(t: Telling) -> int:
    """A request is kept back until long after its window."""
    ask = t.sign(acquire("A", FREE))
    t.house.t_ms += 91_000
    t.forget("lease/")
    place = grant(t, ask)
    return place


def _backdated(t: Telling) -> int:
    """The last entry is dated before the one ahead of it."""
    place = t.at("lease.granted")
    t.edit(place - 1, timeMs=t.entries[place]["timeMs"] + 1)
    first = t.entries[place - 1]
    t.edit(place - 1, expiresAtMs=first["timeMs"] + 60_000, fencingToken=first["timeMs"] * 1_000)
    t.edit(place - 1, holdUntilMs=first["timeMs"] + 3_600_000)
    return place


def _predated(t: Telling) -> int:
    """A's request is dated a minute before A signed it."""
    t.house.t_ms += 60_000
    ask = t.sign(acquire("A", FREE))
    t.house.t_ms -= 60_000
    return grant(t, ask)


def _signature(t: Telling) -> int:
    """A's own earlier signature, under another request of A."""
    place = grant(t, t.sign(acquire("A", FREE)))
    old = t.entries[t.at("lease.granted", 0)]["request"]["signature"]
    return t.edit(place, request=t.entries[place]["request"] | {"signature": old})


def _no_signature(t: Telling) -> int:
    """A signature of small order, which lax readers accept for every message."""
    place = grant(t, t.sign(acquire("A", FREE)))
    weak = base64.b64encode(b"\1" + bytes(63)).decode()
    return t.edit(place, request=t.entries[place]["request"] | {"signature": weak})


def _proof(t: Telling) -> int:
    """The enroller signs for an agent that never said that it is there."""
    ask = t.sign(enrol("E", "5a" * 32))
    said = json.loads(ask.body) | {"keyDigest": t.own(t.at("apikey.issued"))["keyDigest"]}
    said["proof"] = base64.b64encode(key_of(ENROLLER).sign(b"tallystick.enrolment/1\n" + bytes(32))).decode()
    members = {"agent": did_of("E"), "keyDigest": said["keyDigest"]}
    return t.answer(ask.but(body=json.dumps(said).encode()), "agent.added", **members)


def _more(t: Telling) -> int:
    """An entry says what its type has no word for."""
    return t.edit(t.at("lease.granted"), note="as agreed by telephone")


LIES = (
    Lie("edited body", "It changed the name in A's body and granted that.", one_held, _body,
        "request_signature_invalid", "16.5"),
    Lie("another name granted", "It granted A another name than A's body asks for.", one_held, _longer,
        "body_differs", "16.5"),
    Lie("foreign signature", "It showed B's request as A's.", one_held, _foreign, "actor_differs", "16.5"),
    Lie("request by another key", "It granted A what B had signed for.", one_held, _other_key, "actor_differs",
        "16.5"),
    Lie("request made up", "It signed with its own key and named A.", one_held, _own_signature,
        "request_signature_invalid", "16.5"),
    Lie("GET as evidence of a grant", "It took a signed read of A for a wish to hold.", one_held, _get,
        "components_wrong", "4.3", ("target_wrong", "body_malformed")),
    Lie("another method", "It took a GET with a body for a POST.", one_held, _get_with_body, "target_wrong", "5.1"),
    Lie("release as grant", "It took A's release for an acquire.", one_held, _release, "target_wrong", "5.1"),
    Lie("other tag", "It took a signature of another application.", one_held, lambda t: _asked(t, tag="other-app"),
        "evidence_malformed", "16.5"),
    Lie("other component set", "It took a signature that covers no idempotency key.", one_held,
        lambda t: _asked(t, components=(*READ_COMPONENTS, "content-type", "content-digest")), "components_wrong",
        "4.3"),
    Lie("foreign authority", "It took a request that was sent to another server.", one_held,
        lambda t: _asked(t, authority="evil.example"), "authority_wrong", "4.5"),
    Lie("another content type", "It took a body that is no JSON document by its own word.", one_held,
        lambda t: _asked(t, content_type="text/plain"), "content_type_wrong", "4.6"),
    Lie("other ledger's request", "It took a request to another of its ledgers.", one_held, _other_ledger,
        "wrong_ledger", "16.5", ("anchor_wrong", "anchor_root_wrong")),
    Lie("wrong anchor", "It took a request of somebody who had seen another history.", one_held, _other_history,
        "anchor_root_wrong", "4.8"),
    Lie("anchor ahead", "It took a request of somebody who had seen more of the ledger.", one_held, _ahead,
        "anchor_wrong", "4.8"),
    Lie("anchor of another genesis", "It took a request that pins another entry 0.", one_held, _other_genesis,
        "anchor_wrong", "4.8", ("anchor_root_wrong",)),
    Lie("one request answered twice", "It granted on the same bytes a second time.", one_held, _replayed,
        "nonce_reused", "9.3", ("idempotency_key_reused",)),
    Lie("reused nonce", "It decided two requests of one nonce.", one_held, _same_nonce, "nonce_reused", "9.3"),
    Lie("reused idempotency key", "It decided a retry anew.", one_held, _same_idempotency, "idempotency_key_reused",
        "9.2"),
    Lie("request kept back", "It decided a request long after its window.", one_held, _late, "outside_window",
        "4.10", ("expiry_overdue",)),
    Lie("time backwards", "It dated an entry before the one ahead of it.", one_held, _backdated, "time_backwards",
        "18.1", ("token_not_rising",)),
    Lie("backdated time", "It dated a request a minute before it was signed.", one_held, _predated, "outside_window",
        "4.10"),
    Lie("signature of another request", "It put A's old signature below A's new request.", one_held, _signature,
        "request_signature_invalid", "16.5"),
    Lie("signature of small order", "It used a signature that fits every message for lax readers.", one_held,
        _no_signature, "request_signature_invalid", "16.5"),
    Lie("enrolment without proof", "It enrolled a key that never said so.", enrolled, _proof, "proof_invalid", "30.3",
        ("custody_wrong",)),
    Lie("words of its own", "It added a member that the type does not have.", one_held, _more, "leaf_malformed",
        "2.3"),
)  # fmt: skip
