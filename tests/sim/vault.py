"""The ledger's own keys over time, and what witnesses saw of it. Written from chapters 15 and 32 alone.

I17: every checkpoint has the line of each log key in force at its size, and of no other; every leaf is signed by the
oldest receipt key in force at its number. By name: *key* who may change keys, and every refusal of it; *witness* what
is written of witnesses was said by them, of this ledger, by enough of them, and covers something new.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from tests.sim.people import People
from tests.sim.refusals import demand
from verifier.checkpoint import Checkpoint, parse_checkpoint
from verifier.did import encode_did
from verifier.note import Note, VerifierKey, line_is_valid, line_matches, parse_vkey
from verifier.policy import Policy, is_quorum_met

Leaf = dict[str, Any]
OVERLAP = 2
RECORD = "checkpoint.witnessed"


@dataclass(eq=False)
class SigningKey:
    """A key that signs, or signed; announced by entry 0 or another, and ended or not."""

    purpose: str
    vkey: str
    announced_seq: int
    ended_seq: int | None = None
    status: str = "active"

    @property
    def raw(self) -> bytes:
        return b64decode(self.vkey.split("+", 2)[2])[1:]

    @property
    def from_size(self) -> int:
        return self.announced_seq + 1 if self.announced_seq else 0

    def covers(self, size: int) -> bool:
        return self.from_size <= size and (self.ended_seq is None or size <= self.ended_seq)


class Vault(People):
    """Handlers of the entries about keys of the ledger and about witnessed checkpoints."""

    roots: Any
    leaves: list[Leaf]

    def __init__(self) -> None:
        super().__init__()
        self.signing: list[SigningKey] = []
        self.committed: dict[str, str] = {}
        self.policy: Policy | None = None  # of the witnesses that the gateway asks
        self.recorded = 0  # the largest size recorded as witnessed
        self._own: set[str] = set()  # the DIDs that its keys, and the root's, would have
        self._genesis = ""

    # -- who signs ----------------------------------------------------------------------------------------------------

    def in_force(self, purpose: str) -> list[SigningKey]:
        return [key for key in self.signing if key.purpose == purpose and key.ended_seq is None]

    def signers(self, purpose: str, size: int) -> list[SigningKey]:
        """Return the keys whose bounds a size, or a number, lies in, the oldest first."""
        found = [key for key in self.signing if key.purpose == purpose and key.covers(size)]
        return sorted(found, key=lambda key: key.announced_seq)

    def signed_as_it_must(self, note: Note, size: int) -> None:
        """A checkpoint has exactly the lines of the log keys in force at its size, each once, each valid."""
        wanted = [parse_vkey(key.vkey) for key in self.signers("log", size)]
        told = sorted(line.name + line.key_id.hex() for line in note.lines)
        names = sorted(key.name + key.key_id.hex() for key in wanted)
        demand(told == names, "I17", f"the checkpoint of size {size} is signed by {told}, not {names}")
        for line in note.lines:
            is_so = any(line_is_valid(line, key, note.text) for key in wanted)
            demand(is_so, "I17", f"a line of the checkpoint of size {size} is not valid")

    # -- keys come and go ---------------------------------------------------------------------------------------------

    def open_vault(self, leaf: Leaf, raw: bytes) -> None:
        self._genesis = sha256(b"\x00" + raw).hexdigest()
        self._own = {encode_did(parse_vkey(leaf["root"]).public_key)}
        for purpose, vkey, *_ in (line.split(" ") for line in leaf["keys"]):
            self._begins(SigningKey(purpose, vkey, 0))
        self.committed = dict(leaf.get("nextKeys", {}))

    def _begins(self, key: SigningKey) -> None:
        self.signing.append(key)
        self._own.add(encode_did(key.raw))

    def on_key_announced(self, leaf: Leaf) -> None:
        self.role(leaf)
        _, purpose, vkey, *following = self._stated(leaf)
        demand([leaf.get("next", "-")] == following, "key", f"entry {leaf['seq']} commits to another key")
        self._begins(SigningKey(purpose, vkey, leaf["seq"]))
        self.committed.pop(purpose, None)
        if "next" in leaf:
            self.committed[purpose] = leaf["next"]

    def on_key_retired(self, leaf: Leaf) -> None:
        self._key_ended(leaf, "retired")

    def on_key_compromised(self, leaf: Leaf) -> None:
        self._key_ended(leaf, "compromised")

    def _key_ended(self, leaf: Leaf, status: str) -> None:
        self.role(leaf)
        _, purpose, vkey = self._stated(leaf)
        key = next(key for key in self.in_force(purpose) if key.vkey == vkey)
        demand(leaf["announcedSeq"] == key.announced_seq, "key", f"entry {leaf['seq']}: announcedSeq")
        key.ended_seq, key.status = leaf["seq"], status

    def refused_key(self, leaf: Leaf) -> None:
        self.role(leaf)
        self._stated(leaf)
        self.count(f"{leaf['type'].split('/')[1]}: {leaf['error']}")

    on_announcement_refused = on_retirement_refused = on_disowning_refused = refused_key

    def _stated(self, leaf: Leaf) -> list[str]:
        """Return the words of the statement that an entry is about, which it repeats."""
        first, origin, genesis, what = leaf["body"]["statement"].split("\n")[:4]
        words: list[str] = what.split(" ")
        seq = leaf["seq"]
        told = (first, origin, genesis, f"key.{words[0]}")
        wanted = ("tallystick-key/v1", f"origin {leaf['origin']}", f"genesis {self._genesis}", leaf["action"])
        demand(told == wanted, "key", f"entry {seq} answers the statement {told}, not {wanted}")
        demand([leaf["purpose"], leaf["key"]] == words[1:3], "key", f"entry {seq} is about another key")
        demand("error" in leaf or leaf["statement"] == leaf["body"]["statement"], "key", f"entry {seq}: statement")
        return words

    def _why_not_key_announce(self, actor: str, body: Leaf) -> str | None:
        _, purpose, vkey, _ = body["statement"].split("\n")[3].split(" ")
        raw = parse_vkey(vkey).public_key
        if actor not in self.book.operators:
            return "operator_required"
        if self._has_role(raw):
            return "key_known"
        if self.committed.get(purpose) not in (None, sha256(raw).hexdigest()):
            return "key_not_committed"
        return "key_overlap" if len(self.in_force(purpose)) >= OVERLAP else None

    def _has_role(self, raw: bytes) -> bool:
        did = encode_did(raw)
        return did in self.book.operators or self.book.agent(did) is not None or self._is_role(did)

    def _is_role(self, did: str) -> bool:
        """A key of the ledger, past ones and the root's too, gets no other role."""
        return super()._is_role(did) or did in self._own

    def _why_not_key_end(self, actor: str, body: Leaf) -> str | None:
        _, purpose, vkey = body["statement"].split("\n")[3].split(" ")
        found = [key.vkey for key in self.in_force(purpose)]
        if actor not in self.book.operators:
            return "operator_required"
        if vkey not in found:
            return "key_unknown"
        return "key_last" if len(found) == 1 else None

    _why_not_key_retire = _why_not_key_compromise = _why_not_key_end

    # -- witnesses ----------------------------------------------------------------------------------------------------

    def on_checkpoint_witnessed(self, leaf: Leaf) -> None:
        """A record shows a checkpoint of this ledger, with the lines of its log keys and of enough witnesses."""
        seq, shown = leaf["seq"], parse_checkpoint(leaf["checkpoint"].encode())
        told = (leaf["size"], b64decode(leaf["root"]))
        demand(told == (shown.size, shown.root), "witness", f"entry {seq} says another size or root")
        is_ours = 0 < shown.size <= seq and self.roots.at[shown.size] == shown.root
        demand(is_ours, "witness", f"entry {seq} shows another history at {shown.size}")
        is_all = self.cosigned_as_it_must(shown)
        new = [one for one in self.leaves[self.recorded : shown.size] if not one["type"].endswith(f"/{RECORD}/1")]
        demand(new, "witness", f"entry {seq} records what covers nothing new")
        self.recorded = max(self.recorded, shown.size)
        self.count("witnessed by all" if is_all else "witnessed by some")

    def cosigned_as_it_must(self, shown: Checkpoint) -> bool:
        """A note has the lines of our log keys and of enough witnesses, each its own; say whether of all of them."""
        policy = self.policy
        demand(policy is not None, "witness", f"a note of size {shown.size}, although there are no witnesses")
        assert policy is not None
        signed, keys = cosigners(shown.note, policy.witnesses), policy.witnesses.values()
        demand(is_quorum_met(policy, set(signed)), "witness", f"only {signed} have cosigned size {shown.size}")
        lines = [line for line in shown.note.lines if not any(line_matches(line, key) for key in keys)]
        self.signed_as_it_must(Note(shown.note.text, tuple(lines)), shown.size)
        return len(signed) == len(policy.witnesses)


def cosigners(note: Note, witnesses: Mapping[str, VerifierKey]) -> list[str]:
    """Return the witnesses whose line is there; one that is not valid, or stands there twice, is a violation."""
    names = []
    for name, key in witnesses.items():
        lines = [line for line in note.lines if line_matches(line, key)]
        is_good = len(lines) <= 1 and all(line_is_valid(line, key, note.text) for line in lines)
        demand(is_good, "witness", f"a line of {name} is not its own")
        names += [name] * len(lines)
    return names
