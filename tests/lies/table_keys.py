"""Lies about the keys of the ledger and about its witnesses: who may sign what, and when others had seen it."""

from __future__ import annotations

from tests.core.requests import NOW_MS, Ask, ask, did_of, state_key
from tests.lies.kit import LOG_2, LOG_3, NOBODY, RECEIPT_2, House, Json, Lie, Telling, checkpoint, spoken
from tests.verifier import maker

# --- the honest ledgers ---------------------------------------------------------------------------------------------


def one_key() -> House:
    """A holds; the keys are those of entry 0."""
    house = House()
    house.hold("A", "repo:a", ttlMs=60_000)
    return house


def promised() -> House:
    """Entry 0 commits to the log key that comes next."""
    house = House(committed=LOG_2)
    house.hold("A", "repo:a", ttlMs=60_000)
    return house


def overlapping() -> House:
    """A second log key is in force beside the first."""
    house = one_key()
    house.announce(LOG_2)
    house.hold("B", "repo:b", ttlMs=60_000)
    return house


def rotated() -> House:
    """The log key was rotated, and the receipt key is about to be."""
    house = overlapping()
    house.retire(maker.LOG)
    house.announce(RECEIPT_2, "receipt")
    house.hold("C", "repo:c", ttlMs=60_000)
    return house


def seen() -> House:
    """Two witnesses see the ledger twice while A and B take."""
    house = House()
    house.hold("A", "repo:a", ttlMs=600_000)
    house.t_ms += 2_000
    house.witness()
    house.t_ms += 10_000
    house.hold("B", "repo:b", ttlMs=600_000)
    house.t_ms += 2_000
    house.witness()
    house.t_ms += 10_000
    house.hold("C", "repo:c", ttlMs=600_000)
    return house


# --- the lies -------------------------------------------------------------------------------------------------------


def asked(t: Telling, verb: str, note: str, by: str = "op") -> Ask:
    return t.sign(state_key(by, verb, note))


def _entry(t: Telling, verb: str, key: maker.Key, note: str, by: str = "op", **more: object) -> int:
    """Write the entry that a request about a log key would cause if nothing stood against it."""
    kind = {"announce": "key.announced", "retire": "key.retired", "compromise": "key.compromised"}[verb]
    members: Json = {"purpose": "log", "key": spoken(key, "log"), "statement": note, **more}
    return t.answer(asked(t, verb, note, by), kind, **members)


def _without_root(t: Telling) -> int:
    """The log key signs what the root should; op brings it all the same."""
    t.log_keys.append(LOG_2)
    return _entry(t, "announce", LOG_2, t.house.state("announce", LOG_2, by=maker.LOG))


def _without_operator(t: Telling) -> int:
    """The root's genuine statement is brought by B, an agent."""
    t.log_keys.append(LOG_2)
    note = t.house.state("announce", LOG_2)
    return _entry(t, "announce", LOG_2, note, "B", onBehalfOf=did_of("B"))


def _of_another(t: Telling) -> int:
    """The root's genuine statement about a key of another ledger."""
    return _entry(t, "announce", LOG_2, t.house.state("announce", LOG_2, genesis="5a" * 32))


def _not_committed(t: Telling) -> int:
    t.log_keys.append(LOG_3)
    return _entry(t, "announce", LOG_3, t.house.state("announce", LOG_3))


def _known(t: Telling) -> int:
    """The retired key is announced again, with a new statement."""
    t.log_keys.append(maker.LOG)
    return _entry(t, "announce", maker.LOG, t.house.state("announce", maker.LOG))


def _resurrected(t: Telling) -> int:
    """LOG_2 is disowned; then its first announcement is brought once more."""
    house = t.house
    house.announce(LOG_3)
    house.retire(LOG_2)
    t.read()
    t.log_keys = [LOG_3, LOG_2]
    return _entry(t, "announce", LOG_2, t.own(t.at("key.announced", 0))["statement"])


def _key_with_two_roles(t: Telling) -> int:
    """op enrols the raw key that signs the checkpoints: what it signs would have two senses."""
    return t.answer(t.sign(ask("agent.add", "op", NOW_MS, agent=maker.LOG.did)), "agent.added", agent=maker.LOG.did)


def _third(t: Telling) -> int:
    t.log_keys.append(LOG_3)
    return _entry(t, "announce", LOG_3, t.house.state("announce", LOG_3))


def _last(t: Telling) -> int:
    note = t.house.state("retire", maker.LOG)
    return _entry(t, "retire", maker.LOG, note, announcedSeq=0)


def _never_announced(t: Telling) -> int:
    note = t.house.state("retire", NOBODY)
    return _entry(t, "retire", NOBODY, note, announcedSeq=t.at("key.announced"))


def _other_announcement(t: Telling) -> int:
    """LOG_2 is retired as if it were of entry 0."""
    t.log_keys.remove(LOG_2)
    return _entry(t, "retire", LOG_2, t.house.state("retire", LOG_2), announcedSeq=0)


def _denied(t: Telling) -> int:
    """The root's and op's wish is refused for a key that is not known at all."""
    note = t.house.state("announce", LOG_2)
    refused: Json = {"purpose": "log", "key": spoken(LOG_2, "log"), "error": "key_known", "number": 131}
    return t.answer(asked(t, "announce", note), "announcement.refused", **refused)


def _old_key(t: Telling) -> int:
    """The retired key signs the end."""
    t.log_keys = [maker.LOG]
    return -1


def _new_key_missing(t: Telling) -> int:
    """Only the older of two keys in force signs the end."""
    t.log_keys = [maker.LOG]
    return -1


def _older_document(t: Telling) -> int:
    """A reader gets the document of before the rotation, and a ledger that goes on under the key of before."""
    t.document = one_key().document()
    t.log_keys = [maker.LOG]
    return -1


def _unannounced(t: Telling) -> int:
    """The document has a key of which the ledger knows nothing."""
    t.document = t.house.document(2, f"key log {spoken(NOBODY, 'log')} {len(t.entries) - 1} - active")
    t.log_keys.append(NOBODY)
    return -1


def _longer(t: Telling) -> int:
    """The document lets the retired key sign one tree more than the ledger does."""
    line = t.house.lines["log" + maker.LOG.did]
    t.house.lines["log" + maker.LOG.did] = (*line[:4], str(int(line[4]) + 1), line[5])
    t.document = t.house.document(2)
    return -1


def _record(t: Telling, note: bytes, **changes: object) -> int:
    _, size, root, *_ = note.decode().split("\n")
    members: Json = {"checkpoint": note.decode(), "size": int(size), "root": root, **changes}
    return t.invent("checkpoint.witnessed", timeMs=t.house.t_ms, **members)


def _made_up(t: Telling) -> int:
    """A tree that is not this ledger's is recorded as seen."""
    return _record(t, checkpoint([b"another", b"history"], [maker.LOG], t.house.t_ms // 1_000))


def _by_stranger(t: Telling) -> int:
    """What another log signed of this tree is recorded as seen."""
    return _record(t, checkpoint(t.leaves(), [NOBODY], t.house.t_ms // 1_000))


def _other_size(t: Telling) -> int:
    """The record says a larger size than the checkpoint in it."""
    return _record(t, checkpoint(t.leaves()[:5], [maker.LOG], t.house.t_ms // 1_000), size=6)


def _not_yet(t: Telling) -> int:
    """A tree is recorded as seen that has the record itself in it."""
    note = checkpoint([*t.leaves(), b"this"], [maker.LOG], t.house.t_ms // 1_000)
    return _record(t, note)


def _cosignature_made_up(t: Telling) -> int:
    """The lines of w1 and w2 bear their names and key ids, and signatures that the gateway made."""
    note = checkpoint(t.leaves(), [maker.LOG]).decode()
    text = note.partition("\n\n")[0] + "\n"
    for name in ("w1", "w2"):
        payload = maker.WITNESSES[name].key_id(name, 4) + (t.house.t_ms // 1_000).to_bytes(8, "big")
        note += f"— {name} {maker.b64(payload + maker.LOG.sign(text.encode()))}\n"
    return _record(t, note.encode())


def _clock_ahead(t: Telling) -> int:
    """The gateway's clock runs a minute ahead of the witnesses'."""
    t.go_on(lambda house: house.hold("D", "repo:d"))
    return t.go_on(lambda house: house.witness(behind_ms=60_000))


def _clock_frozen(t: Telling) -> int:
    """The gateway's clock stands still, and the witnesses' go on by a minute."""
    t.go_on(lambda house: house.witness(behind_ms=-60_000))
    return t.go_on(lambda house: house.hold("D", "repo:d"))


LIES = (
    Lie("key entry without root", "It announced a key by a statement that it signed itself.", one_key, _without_root,
        "key_statement_invalid", "15.7"),
    Lie("key entry without operator", "It took the root's statement from an agent.", one_key, _without_operator,
        "operator_required", "28.2", ("on_behalf_wrong",)),
    Lie("key of another ledger", "It took the root's statement about another ledger.", one_key, _of_another,
        "leaf_malformed", "2.3"),
    Lie("another key than was promised", "It announced another key than entry 0 commits to.", promised,
        _not_committed, "key_not_committed", "15.10"),
    Lie("retired key announced", "It announced the key that it had retired.", rotated, _known, "key_known", "15.10",
        ("key_line_wrong",)),
    Lie("key resurrected", "It brought the old statement about a key once more.", rotated, _resurrected, "key_known",
        "15.10", ("key_line_wrong",)),
    Lie("log key as an agent", "It enrolled its own log key as an agent.", one_key, _key_with_two_roles, "key_taken",
        "28.8"),
    Lie("three keys at once", "It announced a third log key.", overlapping, _third, "key_overlap", "15.10"),
    Lie("last key retired", "It retired the only log key.", one_key, _last, "key_last", "15.10"),
    Lie("retired what never was", "It retired a key that nobody had announced.", overlapping, _never_announced,
        "key_unknown", "15.10"),
    Lie("another announcement cited", "It retired a key as if entry 0 had announced it.", overlapping,
        _other_announcement, "citation_wrong", "12.6", ("log_line_missing",)),
    Lie("announcement denied", "It refused a key as known that nobody knew.", one_key, _denied, "refusal_wrong",
        "10.1"),
    Lie("retired key signs on", "It signed the end of its ledger with the key that it had retired.", rotated,
        _old_key, "size_outside_key", "15.6"),
    Lie("new key does not sign", "It signed with the older of two keys only.", overlapping, _new_key_missing,
        "log_line_missing", "15.8"),
    Lie("older key document", "It showed the document of before the rotation, and signed with the key of before.",
        rotated, _older_document, "log_line_missing", "15.8"),
    Lie("key of the document only", "It signed with a key that the document has and no entry announced.", rotated,
        _unannounced, "key_line_unannounced", "17.8"),
    Lie("bounds of the document", "It published a document that lets a retired key sign more.", rotated, _longer,
        "key_line_wrong", "17.8"),
    Lie("witnessed checkpoint made up", "It recorded as witnessed a tree of another ledger.", seen, _made_up,
        "record_wrong", "17.6", has_policy=True),
    Lie("witnessed checkpoint of another log", "It recorded as witnessed what another log had signed.", seen,
        _by_stranger, "log_line_missing", "15.8", has_policy=True),
    Lie("witnessed size enlarged", "It recorded a larger size than was witnessed.", seen, _other_size, "record_wrong",
        "17.6", has_policy=True),
    Lie("witnessed before it was", "It recorded as witnessed a tree that was not there yet.", seen, _not_yet,
        "leaf_malformed", "2.3", has_policy=True),
    Lie("cosignature made up", "It recorded cosignatures that no witness made.", seen, _cosignature_made_up,
        "witness_invalid", "16.2", has_policy=True),
    Lie("clock ahead of its cosignature", "It dated entries a minute after witnesses had seen them.", seen,
        _clock_ahead, "later_than_cosignature", "17.6", has_policy=True),
    Lie("frozen behind a cosignature", "It dated an entry a minute before witnesses had seen the one ahead of it.",
        seen, _clock_frozen, "earlier_than_cosignature", "17.6", has_policy=True),
)  # fmt: skip
