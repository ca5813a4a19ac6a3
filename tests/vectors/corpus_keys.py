"""Cases about the keys of the ledger over time: rotation, overlap, disowned keys, and what else is at hand.

The stories are those of tests/verifier/key_stories.py; what each proves, and the level and step, is typed here.
"""

from __future__ import annotations

from tests.vectors.corpus import DAY, Case, Expect, File, holds, receipt, unknown, unreadable, wrong
from tests.vectors.corpus_leaves import in_tree
from tests.vectors.corpus_notes import TEXT
from tests.verifier import maker
from tests.verifier.key_stories import FINAL, HONEST, STORIES, final
from tests.verifier.maker import LOG, NEW_LOG, ORIGIN, RECEIPT, STRANGER, canonical, key_line

KEYED = maker.keyed()
DISOWNED_ONLY = unknown(6, "key_compromised", "signed", direct_signature="valid")


def story(told: str, name: str, comment: str, expect: Expect) -> Case:
    """A story by its name there, as a case by our own."""
    one = next(story for story in STORIES if story.name == told)
    made = one.ledger.receipt(one.seq, one.size, one.witnesses, one.logs, one.key)
    others: dict[str, File] = {f"other-{number}": make() for number, make in enumerate(one.also, 1)}
    options = ("--also", *others) if others else ()
    keys, policy = maker.opened().keys(one.version, one.lines), maker.policy(one.quorum)
    return receipt(f"keys-{name}", comment, made, expect, *options, also=others, keys=keys, policy=policy)


def document(name: str, comment: str, *log_lines: str) -> Case:
    """A key document that the root signed, and that no reader may take."""
    keys = DAY.keys(2, [*log_lines, key_line("receipt", RECEIPT)])
    return receipt(f"keys-{name}", comment, TEXT, unreadable(), keys=keys)


ROTATED = [
    story(
        "an old receipt after the rotation",
        "old-receipt",
        "A receipt from before the rotation holds for ever under the newest document.",
        holds(),
    ),
    story(
        "the overlap, lines in the other order",
        "overlap",
        "While two log keys are in force a checkpoint has both lines, in any order (15.8).",
        holds(),
    ),
    story("a new receipt", "new-receipt", "After the rotation the new keys speak alone.", holds()),
    story(
        "an old entry at a new size",
        "old-entry-new-tree",
        "An entry signed by the old receipt key, in a tree signed by the new log key.",
        holds(),
    ),
    story(
        "an old size under both, a later signature",
        "old-size-signed-later",
        "A second line by a key that does not yet speak for this size does no harm: the other one does.",
        holds(),
    ),
    story(
        "an older document, an old receipt",
        "older-document",
        "A reader with the first document still reads receipts of its time.",
        holds(),
    ),
    story(
        "the overlap without the new line",
        "overlap-without-new",
        "In the overlap the new key's line is missing: whoever has only the old key could have made this.",
        wrong(6, "log_line_missing"),
    ),
    story(
        "the overlap without the old line",
        "overlap-without-old",
        "The same the other way round.",
        wrong(6, "log_line_missing"),
    ),
    story(
        "the document of the overlap, after the retirement",
        "overlap-document-too-old",
        "The document has both keys open, the checkpoint one line: the other key may have been retired since (15.13).",
        unknown(6, "log_line_missing", "signed", direct_signature="valid"),
    ),
    story(
        "the document shows a later announcement than this size",
        "overlap-document-is-new-enough",
        "The same, but the document shows a later entry and no end of the other key: so it had not ended.",
        wrong(6, "log_line_missing"),
    ),
    story(
        "a new size under the old key",
        "new-size-old-key",
        "A tree that grew after the old key had ended.",
        wrong(6, "size_outside_key"),
    ),
    story(
        "a new size under the old key, witnessed",
        "new-size-old-key-witnessed",
        "Witnesses do not lengthen the life of a key.",
        wrong(6, "size_outside_key"),
    ),
    story(
        "an old size under the new key",
        "old-size-new-key",
        "A key does not speak for trees from before it was announced.",
        wrong(6, "size_outside_key"),
    ),
    story(
        "a new entry directly signed by the old receipt key",
        "new-entry-old-receipt-key",
        "The old receipt key signs an entry of after its end.",
        wrong(3, "seq_outside_key"),
    ),
    story(
        "an entry before the new receipt key",
        "old-entry-new-receipt-key",
        "The new receipt key signs an entry of before its time.",
        wrong(3, "seq_outside_key"),
    ),
    story("an unknown log key", "unknown-log", "A log key that no document names.", wrong(5, "log_signature_missing")),
    story(
        "a document without the old key, which the policy still has",
        "policy-still-has-it",
        "The policy pins the log key that the document does not name: it counts, without sizes.",
        holds(),
    ),
]
PROVEN = [
    story(
        "disowned, nothing more at hand",
        "disowned-alone",
        "The log key was stolen: its signature alone is worth neither yes nor no (16.10).",
        DISOWNED_ONLY,
    ),
    story(
        "disowned, but witnessed",
        "disowned-witnessed",
        "What the quorum saw stays valid, whatever became of the key.",
        holds("witnessed 2/3"),
    ),
    story(
        "disowned, witnessed by too few",
        "disowned-witnessed-by-one",
        "One witness of the two that are needed does not save it.",
        DISOWNED_ONLY,
    ),
    story(
        "disowned, a proof to the final tree",
        "disowned-consistent",
        "A consistency proof leads from this tree to the final one that is proven: it counts.",
        holds(),
    ),
    story(
        "disowned, a proof from another size",
        "disowned-proof-of-another-size",
        "A proof from a neighbouring size proves nothing of this one.",
        DISOWNED_ONLY,
    ),
    story(
        "disowned, a proof to another tree",
        "disowned-proof-to-another-tree",
        "A proof to a later tree than the final one does not lead where it must.",
        DISOWNED_ONLY,
    ),
    story(
        "disowned, a tree of the thief, an honest proof",
        "disowned-thief-honest-proof",
        "A tree that the thief signed, beside an honest proof: the roots do not fit.",
        DISOWNED_ONLY,
    ),
    story(
        "disowned, in the overlap under the stolen key",
        "disowned-overlap-stolen-only",
        "In the overlap the thief has one of two keys.",
        DISOWNED_ONLY,
    ),
    story(
        "disowned, in the overlap under both keys",
        "disowned-overlap-both",
        "In the overlap the other key speaks too, and it was not stolen.",
        holds(),
    ),
    story(
        "disowned, beyond the key's sizes, witnessed",
        "disowned-beyond-witnessed",
        "Beyond the key's sizes nothing helps, not even witnesses.",
        wrong(6, "size_outside_key"),
    ),
    story(
        "disowned, the final tree at the key's last size",
        "disowned-final-tree",
        "The final tree itself, under both keys.",
        holds(),
    ),
    story(
        "disowned, another tree of the final size",
        "disowned-other-final-tree",
        "Another tree of the final size is not in the honest history: invalid, and no doubt.",
        wrong(6, "key_compromised"),
    ),
]
UNPROVEN = [
    story(
        "no checkpoint of the final tree is shown",
        "disowned-not-shown",
        "The line names a final tree and shows no checkpoint of it: anybody's word.",
        DISOWNED_ONLY,
    ),
    story(
        "none is shown, but the receipt is witnessed",
        "disowned-not-shown-witnessed",
        "What is witnessed needs no proof that the key was disowned.",
        holds("witnessed 2/3"),
    ),
    story(
        "the final tree is not witnessed",
        "disowned-final-not-witnessed",
        "The final tree lacks the quorum: an operator who is sorry for a signature could say so of any tree.",
        DISOWNED_ONLY,
    ),
    story(
        "the final tree has the line of the stolen key only",
        "disowned-final-by-stolen",
        "The final tree is vouched for by the stolen key only: the thief could have made it.",
        DISOWNED_ONLY,
    ),
    story(
        "the final tree is signed by a stranger",
        "disowned-final-by-stranger",
        "The final tree is signed by a key that the document does not name.",
        DISOWNED_ONLY,
    ),
    story(
        "the final tree lies outside the other key's sizes",
        "disowned-final-outside",
        "The other key does not speak for the final size.",
        DISOWNED_ONLY,
    ),
    story(
        "the final tree, of a reader without quorum",
        "disowned-no-quorum",
        "A reader without a quorum can't know what witnesses saw.",
        DISOWNED_ONLY,
    ),
    story(
        "unproven, another tree of the final size",
        "disowned-unproven-other-tree",
        "Without proof even another tree of the final size is not called invalid.",
        DISOWNED_ONLY,
    ),
    story(
        "witnesses saw another tree of the final size",
        "disowned-witnesses-differ",
        "Witnesses saw another tree of the final size, and the reader has it: the disowning is in doubt.",
        DISOWNED_ONLY,
    ),
    story(
        "the final size falsely low: witnesses saw more under the key",
        "disowned-falsely-low",
        "The final size is falsely low: witnesses saw a larger tree for which this key alone vouched.",
        DISOWNED_ONLY,
    ),
    story(
        "witnesses saw more, under the new key",
        "disowned-witnesses-saw-more",
        "A larger witnessed tree under the new key contradicts nothing.",
        holds(),
    ),
    story(
        "both keys disowned, nothing more at hand",
        "disowned-both",
        "Both keys were stolen and nobody saw the tree: nothing speaks for this receipt.",
        unknown(6, "key_compromised", "none", direct_signature="not_checked"),
    ),
]
_FORGED = (
    f"0 12 compromised {FINAL} {maker.b64(HONEST.root(FINAL))} {maker.b64(HONEST.checkpoint(FINAL - 1, log=NEW_LOG))}"
)
DOCUMENTS = [
    document(
        "compromised-open", "A compromised key without an end.", key_line("log", LOG, f"0 - compromised {final()}")
    ),
    document(
        "final-below-end",
        "The final tree is smaller than what the key may sign.",
        key_line("log", LOG, f"0 15 compromised {final()}"),
    ),
    document(
        "final-of-another-size",
        "The checkpoint on the line is of another size than the line says.",
        key_line("log", LOG, _FORGED),
    ),
    document(
        "final-for-a-retired",
        "A final tree on the line of a key that nobody disowned.",
        key_line("log", LOG, f"0 12 retired {final()}"),
    ),
]


def keyed(seq: int, name: str, comment: str) -> Case:
    """An entry of the day on which both keys change, under the document of its end."""
    made = KEYED.receipt(seq, log=NEW_LOG, key=maker.NEW_RECEIPT if seq > 10 else RECEIPT)
    return receipt(f"entry-{name}", comment, made, holds(), ledger=KEYED, keys=KEYED.keys(2, maker.keyed_lines()))


def stated(name: str, comment: str, seq: int, **changes: object) -> Case:
    """An entry about a key whose members were changed, in a tree that the log really signed."""
    value = {n: v for n, v in {**KEYED.value(seq), **changes}.items() if v is not ...}
    made = in_tree(canonical(value), seq, KEYED)
    return receipt(name, comment, made, wrong(9, "leaf_malformed"), ledger=KEYED)


_FOREIGN = KEYED.value(6)["statement"].replace(ORIGIN, "other.example/x")
ENTRIES = [
    keyed(6, "key-announced", "The announcement of a log key repeats the root's statement, which comes with it."),
    keyed(7, "checkpoint-witnessed", "A record of what witnesses saw is an entry of the gateway."),
    keyed(8, "key-retired", "The end of a key names where it was announced: 0 for a key of entry 0."),
    keyed(
        10, "key-compromised", "The entry that disowns the receipt key; its own direct signature counts for nothing."
    ),
    stated(
        "leaf-key-of-another", "The entry names another key than the root's statement.", 6, key=STRANGER.vkey(ORIGIN)
    ),
    stated("leaf-key-purpose", "A receipt key, where the statement says log.", 6, purpose="receipt"),
    stated("leaf-key-next-made-up", "A committed next key that the statement does not name.", 6, next="5a" * 32),
    stated("leaf-key-next-left-out", "The commitment of the statement is left out of the entry.", 9, next=...),
    stated(
        "leaf-statement-of-another-verb",
        "A statement that retires, in an entry that announces.",
        6,
        statement=KEYED.value(8)["statement"],
    ),
    stated(
        "leaf-statement-of-another-ledger", "A statement for another ledger does nothing here.", 6, statement=_FOREIGN
    ),
    stated(
        "leaf-statement-signed-twice",
        "A statement is signed once.",
        6,
        statement=KEYED.value(6)["statement"] + KEYED.value(6)["statement"].split("\n\n")[1],
    ),
    stated("leaf-witnessed-ahead", "A witnessed tree that is larger than what stands before the entry.", 7, size=8),
    stated("leaf-witnessed-nothing", "A witnessed tree of nothing.", 7, size=0),
]
CASES = [*ROTATED, *PROVEN, *UNPROVEN, *DOCUMENTS, *ENTRIES]
