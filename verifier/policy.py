"""C2SP tlog-policy: the logs a reader accepts, the witnesses he trusts, and how many of them are enough.

A policy is pinned by its reader and never comes with a receipt. Every name is a member of at most one group, so a
witness counts once; names refer to earlier lines only, so evaluation needs no recursion.
Source: docs/protocol.md 16.3 and 16.7 (policy); C2SP tlog-policy.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

from verifier.note import KIND_COSIGNATURE, KIND_ED25519, VerifierKey, parse_vkey
from verifier.wire import TEXT_BYTES_MAX, Malformed, decode_decimal

_ALLOWED = re.compile(rb"(?:[\t\x20-\x7e\x80-\xff]*\n)*")


@dataclass(frozen=True, slots=True)
class Group:
    """Met when `threshold` of its `members` (witnesses or earlier groups) are."""

    name: str
    threshold: int
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Policy:
    """Any one of `logs` suffices; `witnesses` go by the policy's own names; `groups` stand in the file's order."""

    logs: tuple[VerifierKey, ...]
    witnesses: Mapping[str, VerifierKey]
    groups: tuple[Group, ...]
    quorum: str | None  # None is "quorum none": nothing is ever witnessed


def parse_policy(data: bytes) -> Policy:
    """Return the policy in `data` (≤ 64 KiB). Malformed names the line and the broken rule."""
    if len(data) > TEXT_BYTES_MAX or _ALLOWED.fullmatch(data) is None:
        raise Malformed(f"a policy is at most {TEXT_BYTES_MAX} bytes, each line ends with a newline, no control bytes")
    reader = _Reader()
    for number, row in enumerate(data.split(b"\n"), 1):
        # Non-ASCII is opaque: an undecodable byte keeps a visible form, which no vkey's key id can fit.
        words = [part.decode("utf-8", "backslashreplace") for part in re.split(rb"[ \t]+", row) if part]
        try:
            if words and not words[0].startswith("#"):
                reader.read(words)
        except Malformed as error:
            raise Malformed(f"policy line {number}: {error}") from error
    if len(reader.quorums) != 1:
        raise Malformed("a policy has exactly one quorum line")
    return Policy(tuple(reader.logs), reader.witnesses, tuple(reader.groups.values()), reader.quorums[0])


def is_quorum_met(policy: Policy, names: Set[str]) -> bool:
    """Say whether the witnesses `names` (the policy's own names, their cosignatures verified) reach its quorum."""
    met = {name for name in names if name in policy.witnesses}
    for group in policy.groups:
        if sum(member in met for member in group.members) >= group.threshold:
            met.add(group.name)
    return policy.quorum is not None and policy.quorum in met


class _Reader:
    """What the lines so far have said."""

    def __init__(self) -> None:
        self.logs: list[VerifierKey] = []
        self.witnesses: dict[str, VerifierKey] = {}
        self.groups: dict[str, Group] = {}
        self.quorums: list[str | None] = []
        self._grouped: set[str] = set()

    def read(self, words: list[str]) -> None:
        match words:
            case ["log", vkey] | ["log", vkey, _]:  # a URL has no meaning offline
                self.logs.append(_parse_key(vkey, KIND_ED25519, self.logs))
            case ["witness", name, vkey] | ["witness", name, vkey, _]:
                self._check_new(name)
                self.witnesses[name] = _parse_key(vkey, KIND_COSIGNATURE, self.witnesses.values())
            case ["group", name, count, *members] if members:
                self._check_new(name)
                self.groups[name] = self._group(name, count, members)
            case ["quorum", name]:
                if name != "none":
                    self._check_known(name)
                self.quorums.append(None if name == "none" else name)
            case _:
                raise Malformed("expected log, witness, group or quorum with its names")

    def _group(self, name: str, count: str, members: list[str]) -> Group:
        for member in members:
            self._check_known(member)
            if member in self._grouped:
                raise Malformed("a name is a member of at most one group, once")
            self._grouped.add(member)
        threshold = {"any": 1, "all": len(members)}.get(count) or decode_decimal(count, len(members))
        if threshold == 0:
            raise Malformed("a group needs at least one of its members")
        return Group(name, threshold, tuple(members))

    def _check_new(self, name: str) -> None:
        if name == "none" or name in self.witnesses or name in self.groups:
            raise Malformed("a witness or group name is taken")

    def _check_known(self, name: str) -> None:
        if name not in self.witnesses and name not in self.groups:
            raise Malformed("a name must be a witness or group of an earlier line")


def _parse_key(vkey: str, kind: int, others: Iterable[VerifierKey]) -> VerifierKey:
    key = parse_vkey(vkey)
    if key.kind != kind:
        raise Malformed(f"the vkey must be of kind {kind}: 1 for a log, 4 for a witness")
    if any(key.public_key == other.public_key for other in others):
        raise Malformed("the same public key stands on an earlier line, perhaps under another name")
    return key
