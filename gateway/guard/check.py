"""Compares what is about to be committed, or pushed, with what is held.

A commit in the making needs live leases of whoever makes it. A commit that is pushed needs receipts in its message, of
entries that held while it was made, or live leases of whoever pushes; and nobody else may hold a lease on its paths by
now. What a push takes away, because it goes back or sideways, needs live leases too.

Source: docs/guards.md; scenarios 14, 15, 28, 30.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from gateway.client.agent import TTL_MS_DEFAULT
from gateway.client.errors import ClientError
from gateway.client.exits import moment, shown
from gateway.client.terminal import home_option
from gateway.client.trust import Grant
from gateway.client.words import shown_moment, who
from gateway.guard.changes import Need, needs_of, requests_of
from gateway.guard.git import Change, Git
from gateway.guard.held import COMMIT, Desk, Held, Rival, held_of
from gateway.guard.paths import Place, is_tree, resource_of
from gateway.guard.settings import Settings
from gateway.guard.trailer import act_of, making_of
from verifier.entries import ADMIT_RESOURCES_MAX, MODES, RESOURCES_MAX

LINES_MAX = 12  # refusals that are told one by one
NAMES_MAX = 8  # names in a command that is told


class NotCovered(ClientError):
    """Changes that no lease covers; the text says which, who holds them, and what to do."""


@dataclass(slots=True)
class Covered:
    """What covers a commit: the entries that show it, and the leases that were taken for it."""

    seqs: list[int] = field(default_factory=list)
    lease_ids: list[str] = field(default_factory=list)
    claimed: list[Grant] = field(default_factory=list)


async def check_staged(desk: Desk, settings: Settings, needs: Sequence[Need], tree: str = "") -> Covered:
    """Return what covers the needs of a commit in the making; NotCovered, or the refusal of a claim or an admission.

    `tree` is what will be committed, for the admission; "" asks for none.
    """
    is_admitting = settings.is_admitting and tree != ""
    if is_admitting:
        _check_objects(needs)
    used, left = await desk.cover(needs)
    if left and not settings.is_claiming:
        raise NotCovered(await _why_not(desk, settings, left))
    covered = Covered([held.seq for held in used], [held.lease_id for held in used])
    try:
        await _claim(desk, left, covered)
        if is_admitting:
            taken = [held for grant in covered.claimed if (held := held_of(grant.receipt)) is not None]
            covered.seqs += await _admit(desk, needs, [*used, *taken], tree)
    except BaseException:
        for grant in covered.claimed:
            await desk.agent.release(grant.resources, grant.lease_id)
        raise
    return covered


async def _claim(desk: Desk, needs: Sequence[Need], covered: Covered) -> None:
    """Take leases on the needs."""
    for names, mode in requests_of(_wanted(needs), RESOURCES_MAX):
        grant = await desk.agent.acquire(names, mode=mode, ttl_ms=TTL_MS_DEFAULT)
        covered.claimed.append(grant)
        covered.seqs.append(grant.receipt.seq)
        covered.lease_ids.append(grant.lease_id)


async def _admit(desk: Desk, needs: Sequence[Need], leases: Sequence[Held], tree: str) -> list[int]:
    """Ask whether the commit of a tree may be made, under each lease for what it covers; return the entries."""
    seqs, left = list[int](), list(needs)
    for held in leases:
        covered = [need for need in left if held.covers(need)]
        for names, mode in requests_of(_wanted(covered), ADMIT_RESOURCES_MAX):
            admission = await desk.agent.admit(
                COMMIT, names, mode=mode, arguments_digest=act_of(tree), lease=held, until_ms=desk.until_ms
            )
            seqs.append(admission.seq)
        left = [need for need in left if need not in covered]
    if left:
        raise NotCovered(f"not committed:\n  {left[0].words}: the lease that was taken for it does not cover it")
    return seqs


def _wanted(needs: Iterable[Need]) -> Iterable[tuple[str, str]]:
    return ((need.resource, need.mode) for need in needs)


def _check_objects(needs: Iterable[Need]) -> None:
    """NotCovered for a path without a name of its own: an admission names objects, and no folder around them."""
    lines = [
        f"{need.words} is too long or too deep for a name of its own, and admit = yes asks about objects only"
        for need in needs
        if is_tree(need.resource)
    ]
    if lines:
        raise NotCovered("\n  ".join(["not committed:", *_cut(lines), "→ shorten the path"]))


# -- words -------------------------------------------------------------------------------------------------------------


async def _why_not(desk: Desk, settings: Settings, left: Sequence[Need]) -> str:
    rivals = await desk.rivals(left, frozenset((desk.agent.did,)), settings.place.whole)
    barred = {rival.need.path for rival in rivals}
    free = [need for need in left if need.path not in barred]
    lines = [f"{rival.need.words} is held by {rival_words(rival)}" for rival in rivals]
    lines += [f"{need.words} is not claimed" for need in free]
    return "\n  ".join(["not committed:", *_cut(lines), *await _next_steps(desk, settings, free, bool(rivals))])


def rival_words(rival: Rival) -> str:
    """Name the holder by its verified entry; its label, and until when, are in the gateway's view only."""
    row, held = rival.row, rival.held
    if held is None:
        return f"{who(row, 'holder', 'holderName')}, as the gateway says without a proof"
    label = row.get("holderName") if row.get("holder") == held.actor else None
    name = f"{shown(label)} ({held.actor})" if isinstance(label, str) else held.actor
    until = shown_moment(row.get("endsAtMs")) if "endsAtMs" in row else moment(held.until_ms)
    others = f" and {len(held.resources) - 1} more" if len(held.resources) > 1 else ""
    return f"{name}: {held.mode} on {held.resources[0]}{others} ({held.lease_id}) until {until} unless renewed"


async def _next_steps(desk: Desk, settings: Settings, free: Sequence[Need], has_rivals: bool) -> list[str]:
    steps = []
    home = _home_words(desk)
    weak = await desk.too_weak(free)
    for lease_id, mode in sorted(weak.items()):
        steps.append(f"tallystick lease renew {lease_id} --mode {mode}{home}")
    names = sorted({need.resource for need in free}) if not weak else []
    if names:
        mode = max((need.mode for need in free), key=MODES.index)
        asked = names if len(names) <= NAMES_MAX else [around(settings.place, free)]
        option = f" --mode {mode}" if mode == "delete" else ""
        steps.append(f"tallystick lease acquire {shlex.join(asked)}{option}{home}")
    if has_rivals:
        steps.append("wait for the others (tallystick lease acquire … --wait 10m), or see who waits: tallystick wait")
    return [f"→ {step}" for step in steps]


def _home_words(desk: Desk) -> str:
    """Name the profile that the guard asked with: a lease of another one covers nothing here."""
    home = desk.agent.profile.home
    return "" if home is None else home_option(home)


def around(place: Place, needs: Sequence[Need]) -> str:
    """Return the name of the deepest folder that all of the needs lie in."""
    steps = zip(*(need.path.split(b"/")[:-1] for need in needs), strict=False)
    same = [step[0] for step in takewhile(lambda step: len(set(step)) == 1, steps)]
    return f"{resource_of(place, b'/'.join(same)).removesuffix('/**')}/**" if same else place.whole


def _cut(lines: Sequence[str]) -> list[str]:
    more = len(lines) - LINES_MAX
    return [*lines[:LINES_MAX], *([f"… and {more} more"] if more > 0 else [])]


# -- pushes ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Update:
    """A branch or tag goes from commit `old` to commit `new`; None: it was not there, or will not be."""

    name: str
    old: str | None
    new: str | None


@dataclass(frozen=True, slots=True)
class Scope:
    """Which commits are looked at: those not reachable by `known` (arguments of rev-list), nor by `since`."""

    known: tuple[str, ...]
    since: str | None


class Pushed:
    """Checks updates, each commit once. `is_server`: the profile is not that of whoever pushes, and its leases are not
    asked for."""

    def __init__(self, git: Git, desk: Desk, settings: Settings, scope: Scope, *, is_server: bool) -> None:
        self._git, self._desk, self._settings, self._scope = git, desk, settings, scope
        self._is_server = is_server
        self.lines: list[str] = []
        self.count = 0
        self._done = set[str]()
        self._changes: dict[str, list[Change]] = {}

    async def check(self, updates: Iterable[Update]) -> None:
        """NotCovered when a commit, or what an update takes away, is not covered."""
        for update in updates:
            if update.new is not None:
                await self._check_update(update, update.new)
        if self.lines:
            raise NotCovered("\n  ".join(["not pushed:", *_cut(self.lines), *_PUSH_STEPS]))

    async def _check_update(self, update: Update, new: str) -> None:
        since = () if self._scope.since is None else (self._scope.since,)
        checked = self._commits(new, "--not", *self._scope.known, *((update.old,) if update.old else ()), *since)
        for commit, parents in checked.items():
            if commit not in self._done:
                self._done.add(commit)
                await self._check_commit(commit, parents)
        if update.old is not None:
            await self._check_loss(update, update.old, new)

    def _commits(self, *arguments: str) -> dict[str, list[str]]:
        """Return commits with their parents, the oldest first."""
        listed = self._git.run("rev-list", "--reverse", "--topo-order", "--parents", *arguments, "--")
        rows = [line.split() for line in listed.decode("ascii").splitlines()]
        return {commit: parents for commit, *parents in rows}

    def _changed(self, commit: str, parents: list[str]) -> list[Change]:
        """Return what a commit changes, read once."""
        if commit not in self._changes:
            self._changes[commit] = self._git.committed(commit, parents)
        return self._changes[commit]

    async def _check_commit(self, commit: str, parents: list[str]) -> None:
        self.count += 1
        git, settings = self._git, self._settings
        needs = needs_of(settings, self._changed(commit, parents), lambda: git.tree_links(commit))
        held = await self._shown(commit)
        left = [need for need in needs if not any(each.covers(need) for each in held)]
        if left and not self._is_server and not settings.is_admitting:
            _, left = await self._desk.cover(left)
        self.lines += [f"{commit[:12]} changes {need.words}, and no receipt of it covers that" for need in left]
        own = frozenset(each.actor for each in held) | frozenset(() if self._is_server else (self._desk.agent.did,))
        covered = [need for need in needs if need not in left]
        self.lines += [
            f"{commit[:12]} changes {rival.need.words}, now held by {rival_words(rival)}"
            for rival in await self._desk.rivals(covered, own, settings.place.whole)
        ]

    async def _shown(self, commit: str) -> list[Held]:
        """Return what the receipts in a commit's message show: leases that held while it was made, if they count, and
        admissions of its very tree."""
        making = making_of(self._git.message(commit))
        seqs = making.seqs(self._desk.agent.profile.address.origin)
        shown = [held for seq in seqs if (held := await self._desk.shown(seq)) is not None]
        acts = (making.act,) if self._settings.is_admitting else ("", making.act)
        return [held for held in shown if held.act in acts and making.meets(held.from_ms, held.until_ms)]

    async def _check_loss(self, update: Update, old: str, new: str) -> None:
        """What differs between the ends of an update, and no commit between them changed, is taken away by it."""
        git, settings = self._git, self._settings
        made = {
            change.path
            for commit, parents in self._commits(new, "--not", old).items()
            for change in self._changed(commit, parents)
        }
        lost = [change for change in git.between(old, new) if change.path not in made]
        left = needs_of(settings, lost, lambda: git.tree_links(new))
        if left and not self._is_server:
            _, left = await self._desk.cover(left)
        self.lines += [f"{shown(update.name)} would undo {need.words}, which no commit of it changes" for need in left]


_PUSH_STEPS = (
    "→ hold the leases and push again, or commit again with them (git commit --amend): receipts go into the message",
)
