"""Plays a story on the real core with a clock moved by hand, and writes down what was asked and what was decided.

A page has a picture of what happened when, each request as somebody would type it with the entry that it became, and
the report of the verifier on the receipts that are kept beside it. Keys, nonces and times are fixed, so the same code
makes the same bytes. All stories are of one ledger: two ledgers of one origin would be a split view.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from textwrap import dedent, fill
from typing import Any

from gateway.ledger.history import stored_receipt
from tests.scenarios.stage import Stage, did, kind, request
from verifier.entries import Leaf, parse_leaf
from verifier.receipt import check_receipt

PINS = "--root @root.vkey --keys keys.note"
LANE, TIME = 27, 8
WIDTH = 140
NEWEST_OF = 8


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that happened: `asked` is empty where the gateway did it by itself."""

    at_ms: int
    actor: str
    label: str
    holder: str
    lines: tuple[str, ...]
    asked: str = ""


@dataclass(slots=True)
class Teller:
    """One story: who plays in it is `names`, in the order of the picture; `thing` is what they want."""

    stage: Stage
    slug: str
    title: str
    thing: str
    names: Sequence[str]
    holder: str = ""
    begin_ms: int = 0
    steps: list[Step] = field(default_factory=list)
    receipts: dict[str, bytes] = field(default_factory=dict)
    bodies: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.begin_ms = self.stage.now_ms

    async def enrols(self) -> None:
        """Let the operator add those who play."""
        for name in self.names:
            if name not in ("olga", "guard"):
                await self.plays("op", "agent.add", agent=did(name), name=name)

    async def plays(self, name: str, action: str, /, **members: Any) -> Leaf:
        """Send one request of a name, with a nonce made from its place in the ledger, and tell nothing of it."""
        number = self.stage.size
        asked = request(name, action, self.stage.now_ms, **members)
        asked = asked.but(idempotency_key=f"story-{number}", nonce=f"story{number:030d}")
        return parse_leaf((await self.stage.world.ask(asked)).leaf)

    async def asks(
        self,
        name: str,
        asked: str,
        label: str,
        action: str,
        /,
        *,
        show: str,
        why: str = "",
        keep: str = "",
        **told: Any,
    ) -> Leaf:
        """Send a request, and tell it: `asked` is what somebody types for it, `show` names members of its entry."""
        leaf = await self.plays("op" if name == "olga" else name, action, **told)
        self.bodies.append((asked, {"action": action, **told}))
        self._note(leaf, name, label, show, why, keep, asked)
        return leaf

    async def time_passes(self, until_ms: int) -> None:
        """Let time pass until so long after the story's begin; the sweeper comes once, at the end of it."""
        await self.stage.wait(self.begin_ms + until_ms - self.stage.now_ms)

    def finds(
        self, entry: str, label: str, /, *, show: str, why: str = "", keep: str = "", by: str = "gateway"
    ) -> Leaf:
        """Tell an entry that nobody typed a request for: the newest of its kind."""
        leaf = self.newest(entry)
        self._note(leaf, by, label, show, why, keep, "")
        return leaf

    def newest(self, entry: str) -> Leaf:
        """Return the newest entry of a kind; it is one of the last few."""
        size = self.stage.size
        leaves = [parse_leaf(one.leaf) for one in self.stage.world.store.honest.entries(size - NEWEST_OF, size)]
        return [leaf for leaf in leaves if kind(leaf) == entry][-1]

    def says(self, name: str, label: str, text: str, *, asked: str = "") -> None:
        """Tell something that is in no ledger."""
        self.steps.append(Step(self.stage.now_ms - self.begin_ms, name, label, self.holder, (prose(text),), asked))

    def _note(self, leaf: Leaf, name: str, label: str, show: str, why: str, keep: str, asked: str) -> None:
        if kind(leaf) in ("lease.granted", "lease.claimed") and self.thing in json.dumps(leaf.value["resources"]):
            self.holder = name
        if kind(leaf) in ("lease.expired", "lease.broken", "lease.released"):
            self.holder = ""
        where = f"entry {leaf.seq}, `{kind(leaf)}`"
        if keep:
            file = f"{len(self.receipts) + 1}-{keep}.json"
            self.receipts[file] = self.receipt(leaf.seq)
            where += f", receipt [{file}]({self.slug}/{file})"
        told = (
            self.short(f"{member}: {json.dumps(leaf.value[member])}") for member in show.split() if member in leaf.value
        )
        lines = (*([prose(why)] if why else []), f"→ {where}:", "```\n" + "\n".join(told) + "\n```")
        self.steps.append(Step(leaf.time_ms - self.begin_ms, name, label, self.holder, lines, asked))

    def receipt(self, seq: int) -> bytes:
        """Return the receipt of an entry, as the gateway serves it."""
        world, head = self.stage.world, self.stage.world.sequencer.confirmed
        return stored_receipt(world.store.honest, world.signer, seq=seq, size=head.size, note=head.note)

    def short(self, text: str) -> str:
        """Put names for keys, and seconds since the begin for times."""
        for name in (*self.names, "op"):
            text = text.replace(did(name), "olga" if name == "op" else name)
        words = text.split(" ")
        return " ".join(self._moment(word, before) for before, word in zip(("", *words), words, strict=False))

    def _moment(self, word: str, before: str) -> str:
        number = word.rstrip(",}]")
        if not before.strip('{"').endswith(('Ms":', "Ms:")) or not number.isdigit() or int(number) < self.begin_ms:
            return word
        return f"+{(int(number) - self.begin_ms) / 1_000:g}s{word[len(number) :]}"

    # -- the page ------------------------------------------------------------------------------------------------------

    def page(self, begin: str, end: str, shown: str) -> str:
        """Return the page; `shown` is the receipt whose whole report is printed."""
        told = "\n\n".join(self._step(step) for step in self.steps)
        parts = (f"# {self.title}", prose(begin), self.picture(), "## What they asked, and what came", told)
        return "\n\n".join((*parts, "## What is left of it", prose(end), self.checked(shown))) + "\n"

    def picture(self) -> str:
        """Who did what when, a lane for each; the last one says who has the thing."""
        lanes = [name for name in self.names if any(step.actor == name for step in self.steps)] + ["gateway"]
        head = ["time".ljust(TIME), *(lane.ljust(LANE) for lane in lanes), f"who holds {self.thing}"]
        rows = ["".join(head)]
        for step in self.steps:
            cells = (step.label if lane == step.actor else "" for lane in lanes)
            lane_text = "".join(cell.ljust(LANE) for cell in cells)
            rows.append(f"{_seconds(step.at_ms)}".ljust(TIME) + lane_text + (step.holder or "nobody"))
        return "```\n" + "\n".join(rows) + "\n```"

    def _step(self, step: Step) -> str:
        title = f"**{_seconds(step.at_ms)}, {step.actor.capitalize()}: {step.label}**"
        asked = [f"```\n{step.asked}\n```"] if step.asked else []
        return "\n\n".join((title, *asked, *step.lines))

    def checked(self, shown: str) -> str:
        """What the verifier says of the receipts, offline, in the folder docs/stories."""
        keyring = self.stage.world.keyring
        reports = {name: check_receipt(data, keyring) for name, data in self.receipts.items()}
        rows = [
            f"| [{name}]({self.slug}/{name}) | {report.as_text().splitlines()[0]} |" for name, report in reports.items()
        ]
        name = next(file for file in self.receipts if file.endswith(f"-{shown}.json"))
        command = f"tallystick-verify receipt {self.slug}/{name} {PINS}"
        head = (f"| receipt | `tallystick-verify receipt … {PINS}` |", "| --- | --- |", *rows)
        full = ("```", f"$ {command}", reports[name].as_text(), "```")
        return "\n".join((*head, "", "One of them in full:", "", *full))


def digest(text: str) -> str:
    """Return the digest of what will be done: of the line that `echo` prints."""
    return sha256(f"{text}\n".encode()).hexdigest()


def prose(text: str) -> str:
    paragraphs = dedent(text).strip().split("\n\n")
    return "\n\n".join(
        fill(" ".join(part.split()), WIDTH, break_long_words=False, break_on_hyphens=False) for part in paragraphs
    )


def _seconds(ms: int) -> str:
    return f"{ms / 1_000:g} s"
