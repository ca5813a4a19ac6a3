"""The worked example of docs/protocol.md: one ledger of four entries from fixed keys and times, made by `make docs`.

It uses the formats only, not the gateway, so that the example says what the protocol says. The test beside this file
gives the result to the real verifier. The keys' seeds are 32 equal bytes: never use them for anything else.
"""

import json
from dataclasses import dataclass
from functools import cache
from hashlib import sha256

from gateway.client.signing import Draft, sign_request
from keys.forms import root_vkey, signed_key_document
from keys.signing import SigningKey
from verifier.checkpoint import checkpoint_text
from verifier.did import thumbprint
from verifier.entries import PARAMETER_DEFAULTS, RULES_VERSION, ZERO_HASH, full_type
from verifier.keyring import KeyDocument, KeyLine, open_keyring
from verifier.merkle import leaf_hash
from verifier.note import Note, encode_note, make_vkey, signature_line
from verifier.proof import Proof, encode_proof
from verifier.receipt import PAYLOAD_TYPE, check_receipt, pre_authentication
from verifier.replay.tree import Tree
from verifier.wire import JsonObject, encode_base64, encode_canonical

ORIGIN, AUTHORITY = "gateway.example/main", "gateway.example"
ROOT, LOG, RECEIPT, OPERATOR, AGENT = (SigningKey(bytes([number]) * 32) for number in range(1, 6))
LOG_KEY, RECEIPT_KEY = make_vkey(ORIGIN, LOG.public_key), make_vkey(f"{ORIGIN}/receipt", RECEIPT.public_key)
KEY_LINES = (KeyLine("log", LOG_KEY), KeyLine("receipt", RECEIPT_KEY))
START_MS = 1_800_000_000_000  # 15 January 2027


@dataclass(frozen=True, slots=True)
class Example:
    """The files of the example, and the parts that the document shows."""

    root_vkey: str
    keys: bytes
    receipt: bytes
    request: str
    leaf: bytes
    proof: bytes
    report: str


def open_ledger() -> list[bytes]:
    """Entry 0 and the start of the service."""
    entry: JsonObject = {
        "rules": RULES_VERSION,
        "root": root_vkey(ORIGIN, ROOT.public_key).vkey,
        "keys": [*sorted(line.text for line in KEY_LINES)],
        "operators": [OPERATOR.did],
        "authorities": [AUTHORITY],
        "isPublic": True,
        "isDev": False,
        "unicodeVersion": "14.0.0",
        "parameters": dict(PARAMETER_DEFAULTS),
    }
    leaves = [leaf([], "ledger.opened", START_MS, "gateway", entry)]
    started: JsonObject = {"cause": "start", "isClean": True, "gapMs": 0}
    return [*leaves, leaf(leaves, "service.started", START_MS, "gateway", started)]


def leaf(before: list[bytes], name: str, time_ms: int, actor: str, members: JsonObject) -> bytes:
    """One leaf after those `before`: the common members and its own."""
    common: JsonObject = {
        "type": full_type(name),
        "origin": ORIGIN,
        "seq": len(before),
        "epoch": 1 if before else 0,
        "timeMs": time_ms,
        "prev": sha256(before[-1]).hexdigest() if before else ZERO_HASH,
        "genesis": leaf_hash(before[0]).hex() if before else ZERO_HASH,
        "durability": "file",
        "actor": actor,
        "principal": actor,
        "onBehalfOf": actor,
    }
    return encode_canonical({**common, **members})


def signed(
    key: SigningKey, path: str, body: JsonObject, anchor: str, time_ms: int, name: str
) -> tuple[Draft, dict[str, str]]:
    """A signed request whose nonce and idempotency key are made from its name."""
    text = encode_canonical({"ledger": ORIGIN, "actorDid": key.did, **body})
    draft = Draft("POST", AUTHORITY, path, "", anchor, text, f"{name}-1")
    return draft, sign_request(draft, key, created_s=time_ms // 1000, nonce=f"nonce-of-the-example-{name}")


def evidence(draft: Draft, headers: dict[str, str]) -> JsonObject:
    """What an entry keeps of the request that caused it."""
    return {
        "method": draft.method,
        "authority": draft.authority,
        "path": draft.path,
        "query": "?",
        "contentType": headers["content-type"],
        "idempotencyKey": draft.idempotency_key,
        "anchor": draft.anchor,
        "body": (draft.body or b"").decode("utf-8"),
        "signatureInput": headers["signature-input"],
        "signature": headers["signature"].split(":")[1],
    }


def tree_of(leaves: list[bytes]) -> Tree:
    tree = Tree()
    for entry in leaves:
        tree.append(leaf_hash(entry))
    return tree


def anchor_of(leaves: list[bytes]) -> str:
    return f"{ORIGIN} {len(leaves)} {encode_base64(tree_of(leaves).root())}"


def prove(leaves: list[bytes], index: int) -> bytes:
    """The proof of one leaf at the checkpoint over all."""
    tree = tree_of(leaves)
    text = checkpoint_text(ORIGIN, tree.size, tree.root())
    note = encode_note(Note(text, (signature_line(LOG_KEY, LOG.sign(text.encode())),)))
    return encode_proof(Proof(index, tuple(tree.path(index, tree.size)), note))


@cache
def build() -> Example:
    """The agent is added by the operator, takes a lease, and holds the receipt of entry 3."""
    leaves = open_ledger()
    now_ms = START_MS + 2_000
    draft, headers = signed(
        OPERATOR, "/api/v1/acp/agents", {"agent": AGENT.did, "name": "worker-1"}, anchor_of(leaves[:1]), now_ms, "enrol"
    )
    added: JsonObject = {"agent": AGENT.did, "name": "worker-1", "request": evidence(draft, headers)}
    leaves.append(leaf(leaves, "agent.added", now_ms, OPERATOR.did, added))
    now_ms = START_MS + 5_250
    lock = "lock:deploy/production"
    draft, headers = signed(
        AGENT, "/api/v1/acp/coordination/lease", {"resource": lock, "ttlMs": 60_000}, anchor_of(leaves), now_ms, "lease"
    )
    granted: JsonObject = {
        "resources": [lock],
        "mode": "write",
        "schemes": [{"class": "exclusive", "isFolding": False, "name": "lock"}],
        "leaseId": f"L{len(leaves)}",
        "fencingToken": now_ms * 1000,
        "ttlMs": 60_000,
        "expiresAtMs": now_ms + 60_000,
        "holdUntilMs": now_ms + 3_600_000,
        "request": evidence(draft, headers),
    }
    leaves.append(leaf(leaves, "lease.granted", now_ms, AGENT.did, granted))
    return finish(leaves, draft, headers)


def finish(leaves: list[bytes], draft: Draft, headers: dict[str, str]) -> Example:
    """Sign, prove, publish, and ask the verifier."""
    document = KeyDocument(ORIGIN, leaf_hash(leaves[0]), 1, None, KEY_LINES)
    keys, root = signed_key_document(document, ROOT), root_vkey(ORIGIN, ROOT.public_key).vkey
    proof, last = prove(leaves, len(leaves) - 1), leaves[-1]
    envelope: JsonObject = {
        "payloadType": PAYLOAD_TYPE,
        "payload": encode_base64(last),
        "signatures": [
            {"keyid": thumbprint(RECEIPT.public_key), "sig": encode_base64(RECEIPT.sign(pre_authentication(last)))}
        ],
        "proof": proof.decode("utf-8"),
    }
    receipt = json.dumps(envelope, indent=1).encode("ascii") + b"\n"
    report = check_receipt(receipt, open_keyring(root=root, document=keys)).as_text()
    lines = [f"{draft.method} {draft.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    request = "\n".join([*lines, "", (draft.body or b"").decode("utf-8")])
    return Example(root, keys, receipt, request, last, proof, report)


def files() -> dict[str, bytes]:
    """The files below docs/example/."""
    made = build()
    return {"receipt.json": made.receipt, "keys.note": made.keys, "root.vkey": f"{made.root_vkey}\n".encode()}


def example() -> str:
    """Chapter 1 of the protocol."""
    made = build()
    return f"""1.1 An agent asks for a lease. It signs the request itself (chapter 4); the anchor names the newest
checkpoint it has verified.

```http
{made.request}
```

1.2 The gateway decides, and the decision becomes entry 3 of its ledger. This is the leaf; it is one line of
canonical JSON, broken here for the eye only. It holds the request as evidence, the hash of the leaf before it,
and the hash of entry 0.

```json
{json.dumps(json.loads(made.leaf), indent=1, sort_keys=True, ensure_ascii=False)}
```

1.3 The answer carries a receipt: the leaf in base64, a signature over it by the receipt key, and this proof
that it is in the tree. The path is followed by the checkpoint, which the log key has signed.

```text
{made.proof.decode("utf-8").rstrip()}
```

1.4 The reader has pinned the root's key before, `{made.root_vkey}`,
and has the key document that the root signed:

```text
{made.keys.decode("utf-8").rstrip()}
```

1.5 With these two and nothing else, in the folder [docs/example](example),
`tallystick-verify receipt receipt.json --root @root.vkey --keys keys.note` says:

```text
{made.report}
```

1.6 The seeds of the example's keys are 32 equal bytes: 1 root, 2 log, 3 receipt, 4 operator, 5 agent.
Everything above can be made again.
"""
