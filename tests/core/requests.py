"""Signed requests for tests: deterministic keys, every field open to change, the signature base built by hand.

The base is written out here and not taken from the verifier, so that a mistake in one is not repeated in the other.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gateway.core.intake import RawRequest, SignedRequest, intake
from keys.signing import SigningKey
from verifier.note import Note, encode_note, make_vkey, signature_line

ORIGIN = "gateway.example/main"
AUTHORITY = "gateway.example"
AUTHORITIES = frozenset({AUTHORITY, "127.0.0.1:8443"})
ENROLLER = "enroller"
WHOSE = ("ledger", "actorDid")
GENESIS_ROOT = hashlib.sha256(b"genesis").digest()
NOW_S = 1_780_000_000
ARGUMENTS = hashlib.sha256(b"arguments").hexdigest()  # of what is done, where a test does not care
NOW_MS = NOW_S * 1_000
PATHS = {
    "lease.acquire": "/api/v1/acp/coordination/lease",
    "lease.renew": "/api/v1/acp/coordination/renew",
    "lease.release": "/api/v1/acp/coordination/release",
    "lease.transfer": "/api/v1/acp/coordination/transfer",
    "lease.accept": "/api/v1/acp/coordination/accept",
    "lease.break": "/api/v1/acp/coordination/break",
    "wait.claim": "/api/v1/acp/coordination/wait/claim",
    "wait.cancel": "/api/v1/acp/coordination/wait/cancel",
    "batch.submit": "/api/v1/acp/coordination/batch",
    "scheme.set": "/api/v1/acp/schemes",
    "operator.add": "/api/v1/acp/operators",
    "operator.remove": "/api/v1/acp/operators/remove",
    "agent.add": "/api/v1/acp/agents",
    "agent.remove": "/api/v1/acp/agents/remove",
    "apikey.issue": "/api/v1/acp/apikeys",
    "apikey.revoke": "/api/v1/acp/apikeys/revoke",
    "session.open": "/api/v1/acp/sessions",
    "session.beat": "/api/v1/acp/sessions/beat",
    "session.close": "/api/v1/acp/sessions/close",
    "key.announce": "/api/v1/acp/keys/announce",
    "key.retire": "/api/v1/acp/keys/retire",
    "key.compromise": "/api/v1/acp/keys/compromise",
    "coordination.admit": "/api/v1/acp/coordination/admit",
    "approval.ask": "/api/v1/acp/approvals",
    "approval.give": "/api/v1/acp/approvals/give",
    "approval.decline": "/api/v1/acp/approvals/decline",
    "approval.withdraw": "/api/v1/acp/approvals/withdraw",
    "rules.load": "/api/v1/acp/rules",
}
COMPONENTS = (
    "@method", "@authority", "@path", "@query", "content-type", "content-digest", "idempotency-key",
    "tallystick-anchor",
)  # fmt: skip
READ_COMPONENTS = ("@method", "@authority", "@path", "@query", "tallystick-anchor")
PARAMS = ("created", "expires", "keyid", "alg", "nonce", "tag")

_count = itertools.count()


def key_of(name: str) -> SigningKey:
    """Return the same key for the same name, always."""
    return SigningKey(hashlib.sha256(name.encode()).digest())


def did_of(name: str) -> str:
    return key_of(name).did


def anchor_text(origin: str = ORIGIN, size: int = 1, root: bytes = GENESIS_ROOT) -> str:
    return f"{origin} {size} {base64.b64encode(root).decode()}"


def digest_of(body: bytes) -> str:
    return f"sha-256=:{base64.b64encode(hashlib.sha256(body).digest()).decode()}:"


def _fresh(prefix: str) -> str:
    return f"{prefix}{next(_count):030d}"


@dataclass(frozen=True)
class Ask:
    """A request before it is signed. Change a field with `but`; change headers *after* signing with `raw(...)`."""

    action: str
    key: SigningKey
    body: bytes
    path: str
    method: str = "POST"
    authority: str = AUTHORITY
    query: str = "?"
    content_type: str = "application/json"
    idempotency_key: str = ""
    anchor: str = field(default_factory=anchor_text)
    created: int = NOW_S
    expires: int = NOW_S + 60
    nonce: str = ""
    keyid: str = ""
    label: str = "sig"
    alg: str = "ed25519"
    tag: str = "tallystick-v1"
    components: tuple[str, ...] = COMPONENTS
    params: tuple[str, ...] = PARAMS

    def but(self, **changes: Any) -> Ask:
        return replace(self, **changes)

    def again(self) -> Ask:
        """The same intention signed anew: same idempotency key, fresh nonce."""
        return replace(self, nonce=_fresh("n"))

    def members(self) -> dict[str, Any]:
        decoded = json.loads(self.body)
        assert isinstance(decoded, dict)
        return decoded

    def values(self) -> dict[str, str]:
        return {
            "@method": self.method,
            "@authority": self.authority,
            "@path": self.path,
            "@query": self.query,
            "content-type": self.content_type,
            "content-digest": digest_of(self.body),
            "idempotency-key": f'"{self.idempotency_key}"',
            "tallystick-anchor": self.anchor,
        }

    def signature_params(self) -> str:
        texts = {
            "created": str(self.created),
            "expires": str(self.expires),
            "keyid": f'"{self.keyid or self.key.did}"',
            "alg": f'"{self.alg}"',
            "nonce": f'"{self.nonce}"',
            "tag": f'"{self.tag}"',
        }
        covered = " ".join(f'"{name}"' for name in self.components)
        return f"({covered})" + "".join(f";{name}={texts[name]}" for name in self.params)

    def base(self) -> bytes:
        values = self.values()
        lines = [f'"{name}": {values[name]}' for name in self.components]
        return "\n".join([*lines, f'"@signature-params": {self.signature_params()}']).encode()

    def headers(self) -> dict[str, str]:
        values = self.values()
        signature = base64.b64encode(self.key.sign(self.base())).decode()
        fields = {name: values[name] for name in values if name[0] != "@" and name in self.components}
        return {
            "host": self.authority,
            **fields,
            "signature-input": f"{self.label}={self.signature_params()}",
            "signature": f"{self.label}=:{signature}:",
        }

    def raw(self, change: Callable[[dict[str, str]], Any] | None = None, **parts: Any) -> RawRequest:
        """Return the wire request; `change` edits its headers and `parts` replace its fields, both after signing."""
        headers = self.headers()
        if change is not None:
            change(headers)
        raw = RawRequest(self.method, self.authority, self.path, self.query, tuple(headers.items()), self.body)
        return raw._replace(**parts)

    def signed(self) -> SignedRequest:
        """Return what the door makes of it."""
        return intake(self.raw(), origin=ORIGIN, authorities=AUTHORITIES, action=self.action)


def ask(action: str, name: str, /, at_ms: int = NOW_MS, **members: Any) -> Ask:
    """Return a request by the key of `name`, created in the second of `at_ms`; `members` go into its body."""
    key = key_of(name)
    body = json.dumps({"ledger": ORIGIN, "actorDid": key.did, **members}).encode()
    created = at_ms // 1_000
    return Ask(
        action, key, body, PATHS[action],
        idempotency_key=_fresh("k"), nonce=_fresh("n"), created=created, expires=created + 60,
    )  # fmt: skip


def acquire(name: str, /, *resources: str, at_ms: int = NOW_MS, **members: Any) -> Ask:
    named: dict[str, Any] = {"resource": resources[0]} if len(resources) == 1 else {"resources": list(resources)}
    return ask("lease.acquire", name, at_ms, **named, **members)


def renew(name: str, lease_id: str, /, at_ms: int = NOW_MS, **members: Any) -> Ask:
    return ask("lease.renew", name, at_ms, leaseId=lease_id, **members)


def release(name: str, /, *resources: str, at_ms: int = NOW_MS, **members: Any) -> Ask:
    named: dict[str, Any] = {"resource": resources[0]} if len(resources) == 1 else {"resources": list(resources)}
    return ask("lease.release", name, at_ms, **named, **members)


def transfer(name: str, lease_id: str, token: int, to: str, /, at_ms: int = NOW_MS, **members: Any) -> Ask:
    named = {"leaseId": lease_id, "seenToken": token, "toDid": did_of(to), "reason": "shift-over", **members}
    return ask("lease.transfer", name, at_ms, **named)


def accept(name: str, lease_id: str, /, at_ms: int = NOW_MS, **members: Any) -> Ask:
    return ask("lease.accept", name, at_ms, leaseId=lease_id, **members)


def break_(name: str, resource: str, token: int, /, at_ms: int = NOW_MS, **members: Any) -> Ask:
    return ask("lease.break", name, at_ms, resource=resource, seenToken=token, **({"reason": "stuck"} | members))


def claim(name: str, ticket_id: str, /, at_ms: int = NOW_MS, **members: Any) -> Ask:
    return ask("wait.claim", name, at_ms, ticketId=ticket_id, **members)


def cancel(name: str, ticket_id: str, /, at_ms: int = NOW_MS, **members: Any) -> Ask:
    return ask("wait.cancel", name, at_ms, ticketId=ticket_id, **members)


def admit(name: str, /, *resources: str, at_ms: int = NOW_MS, **members: Any) -> Ask:
    """Ask whether something may be done to resources; `lease` is (id, token) of the lease that is shown."""
    named: dict[str, Any] = {"resource": resources[0]} if len(resources) == 1 else {"resources": list(resources)}
    lease = members.pop("lease", None)
    fence = {} if lease is None else {"leaseId": lease[0], "fencingToken": lease[1]}
    asked = {"operation": "file.write", "argumentsDigest": ARGUMENTS, **named, **fence, **members}
    return ask("coordination.admit", name, at_ms, **asked)


def approved(
    by: str, one: Ask, genesis: str, /, rules_digest: str = "0" * 64, agent: str | None = None, at_ms: int = NOW_MS,
    **changes: Any,
) -> dict[str, Any]:  # fmt: skip
    """Return the approval of what `one` asks to be admitted, from a second before for an hour, signed by `by`.

    `agent` is the principal where that is not who asks; `changes` are of the statement.
    """
    said = one.members()
    who = one.key.did if agent is None else did_of(agent)
    names = said.get("resources") or [said["resource"]]
    action = {
        "agent": who, "argumentsDigest": said["argumentsDigest"], "cost": said.get("cost", 0), "ledger": ORIGIN,
        "mode": said.get("mode", "write"), "operation": said["operation"], "resources": sorted(names),
        "rulesDigest": rules_digest,
    }  # fmt: skip
    statement = {
        "type": "tallystick/approval/1", "ledger": ORIGIN, "genesis": genesis, "agent": who,
        "operation": said["operation"], "actionDigest": hashlib.sha256(_canonical(action)).hexdigest(),
        "argumentsDigest": said["argumentsDigest"], "rulesDigest": rules_digest, "approver": did_of(by),
        "nonce": _fresh("a"), "notBeforeMs": at_ms - 1_000, "expiresAtMs": at_ms + 3_600_000,
    } | changes  # fmt: skip
    signed = b"tallystick.approval/1\n" + hashlib.sha256(_canonical(statement)).digest()
    return {"statement": statement, "signature": base64.b64encode(key_of(by).sign(signed)).decode()}


def with_approvals(one: Ask, *approvals: dict[str, Any]) -> Ask:
    """Return a request with approvals in its body; its idempotency key stays."""
    return one.but(body=json.dumps(one.members() | {"approvals": list(approvals)}).encode())


def plead(name: str, /, *resources: str, of: Sequence[str], at_ms: int = NOW_MS, **members: Any) -> Ask:
    """Ask those in `of` to approve what `admit` would ask for."""
    named: dict[str, Any] = {"resource": resources[0]} if len(resources) == 1 else {"resources": list(resources)}
    asked = {"operation": "file.write", "argumentsDigest": ARGUMENTS, "approvers": sorted(map(did_of, of)), **named}
    return ask("approval.ask", name, at_ms, **(asked | members))


def give(name: str, ask_id: str, approval: dict[str, Any], /, at_ms: int = NOW_MS) -> Ask:
    return ask("approval.give", name, at_ms, askId=ask_id, approval=approval)


def decline(name: str, ask_id: str, /, at_ms: int = NOW_MS, **members: Any) -> Ask:
    return ask("approval.decline", name, at_ms, askId=ask_id, **members)


def withdraw(name: str, ask_id: str, at_ms: int = NOW_MS) -> Ask:
    return ask("approval.withdraw", name, at_ms, askId=ask_id)


def load_rules(name: str, text: str, version: int, /, mode: str = "enforce", at_ms: int = NOW_MS) -> Ask:
    return ask("rules.load", name, at_ms, rules=text, rulesMode=mode, rulesVersion=version)


def set_scheme(name: str, scheme: str, class_name: str, /, at_ms: int = NOW_MS, **members: Any) -> Ask:
    return ask("scheme.set", name, at_ms, **{"name": scheme, "class": class_name, **members})


def add(name: str, agent: str, /, at_ms: int = NOW_MS, **members: Any) -> Ask:
    return ask("agent.add", name, at_ms, agent=did_of(agent), **members)


def remove(name: str, agent: str, at_ms: int = NOW_MS) -> Ask:
    return ask("agent.remove", name, at_ms, agent=did_of(agent))


def add_operator(name: str, operator: str, /, at_ms: int = NOW_MS, **members: Any) -> Ask:
    return ask("operator.add", name, at_ms, operator=did_of(operator), **members)


def remove_operator(name: str, operator: str, at_ms: int = NOW_MS) -> Ask:
    return ask("operator.remove", name, at_ms, operator=did_of(operator))


def enrol(agent: str, digest: str, /, at_ms: int = NOW_MS, **members: Any) -> Ask:
    """Return what the gateway's enroller signs for an agent that came with an API key of this digest."""
    proof = proof_of(agent, digest)
    return ask("agent.add", ENROLLER, at_ms, agent=did_of(agent), keyDigest=digest, proof=proof, **members)


def proof_of(agent: str, digest: str) -> str:
    """Return the new key's word that it wants to be enrolled with this API key here."""
    wanted = _canonical({"agent": did_of(agent), "keyDigest": digest, "ledger": ORIGIN})
    signed = b"tallystick.enrolment/1\n" + hashlib.sha256(wanted).digest()
    return base64.b64encode(key_of(agent).sign(signed)).decode()


def issue(name: str, digest: str, kind: str, /, at_ms: int = NOW_MS, **members: Any) -> Ask:
    return ask("apikey.issue", name, at_ms, keyDigest=digest, kind=kind, **members)


def revoke(name: str, digest: str, at_ms: int = NOW_MS) -> Ask:
    return ask("apikey.revoke", name, at_ms, keyDigest=digest)


def statement(by: str, to: str, /, at_ms: int = NOW_MS, **changes: Any) -> dict[str, Any]:
    """Return a delegation of everything to the key of `to`, from a second before for an hour; None leaves out."""
    said = {
        "type": "tallystick/delegation/1", "iss": did_of(by), "sub": did_of(to), "aud": ORIGIN,
        "verbs": ["admit", "lease", "transfer"], "maxDepth": 0,
        "notBeforeMs": at_ms - 1_000, "expiresAtMs": at_ms + 3_600_000,
    } | changes  # fmt: skip
    return {name: value for name, value in said.items() if value is not None}


def delegated(by: str, said: dict[str, Any]) -> dict[str, Any]:
    """Return a statement with the signature of `by`, as it stands in a body."""
    signed = b"tallystick.delegation/1\n" + hashlib.sha256(_canonical(said)).digest()
    return {"statement": said, "signature": base64.b64encode(key_of(by).sign(signed)).decode()}


def chain(*names: str, at_ms: int = NOW_MS, **changes: Any) -> list[dict[str, Any]]:
    """Return delegations from each name to the next; `changes` are of the last, the others may be passed on."""
    links: list[dict[str, Any]] = []
    for by, to in itertools.pairwise(names):
        more = changes if to == names[-1] else {"maxDepth": 1}
        if links:
            more = {"parent": hashlib.sha256(_canonical(links[-1]["statement"])).hexdigest(), **more}
        links.append(delegated(by, statement(by, to, at_ms, **more)))
    return links


def open_session(name: str, delegations: list[dict[str, Any]], /, at_ms: int = NOW_MS, **members: Any) -> Ask:
    return ask("session.open", name, at_ms, delegations=delegations, **members)


def beat(name: str, /, at_ms: int = NOW_MS, **members: Any) -> Ask:
    return ask("session.beat", name, at_ms, **members)


def close(name: str, session: str, /, at_ms: int = NOW_MS, **members: Any) -> Ask:
    return ask("session.close", name, at_ms, session=did_of(session), **members)


def key_note(
    verb: str, purpose: str, name: str, genesis: str, /, following: str | None = None, *, by: str = "root",
    origin: str = ORIGIN,
) -> str:  # fmt: skip
    """Return a statement of the root about the key of a name; `following` names the key that must come next."""
    spoken = origin if purpose == "log" else f"{origin}/{purpose}"
    last = ""
    if verb == "announce":
        last = " -" if following is None else f" {hashlib.sha256(key_of(following).public_key).hexdigest()}"
    what = f"{verb} {purpose} {make_vkey(spoken, key_of(name).public_key).vkey}{last}"
    text = f"tallystick-key/v1\norigin {origin}\ngenesis {genesis}\n{what}\n"
    line = signature_line(make_vkey(f"{origin}/root", key_of(by).public_key), key_of(by).sign(text.encode()))
    return encode_note(Note(text, (line,))).decode()


def state_key(name: str, verb: str, note: str, /, at_ms: int = NOW_MS) -> Ask:
    """Ask in the name of an operator for what the root states."""
    return ask(f"key.{verb}", name, at_ms, statement=note)


def batch(name: str, /, *commands: Ask, at_ms: int = NOW_MS, **members: Any) -> Ask:
    """Return one request that asks for what `commands` ask for, one after the other."""
    rows = [
        {"action": one.action} | {key: value for key, value in one.members().items() if key not in WHOSE}
        for one in commands
    ]
    return ask("batch.submit", name, at_ms, commands=rows, **members)


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def read(name: str, path: str, /, at_ms: int = NOW_MS, **changes: Any) -> Ask:
    """Return a signed GET."""
    created = at_ms // 1_000
    plain = Ask(
        "", key_of(name), b"", path, method="GET",
        nonce=_fresh("n"), created=created, expires=created + 15, components=READ_COMPONENTS,
    )  # fmt: skip
    return plain.but(**changes)
