"""Writes docs/stories/: the pages, the receipts beside them, and the ledger of the first three. Part of `make docs`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from keys.forms import root_vkey, signed_key_document
from tests.core.requests import ORIGIN, key_of
from tests.scenarios.stage import Stage, stage
from tests.stories import circle, death, release, stampede
from tests.stories.teller import PINS, Teller, prose
from tests.world import World
from verifier.keyring import KeyDocument
from verifier.replay.ledger import check_ledger

STORIES = (release.tell, death.tell, circle.tell, stampede.tell)
APART_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Made:
    """Every file below docs/stories/, and the stories that they were made from."""

    files: Mapping[str, bytes]
    tellers: tuple[Teller, ...]


@cache
def build() -> Made:
    """Play all of them, one after the other, in one ledger, and have it audited."""
    with TemporaryDirectory(prefix="tallystick-stories-") as folder:
        return asyncio.run(_play(Path(folder)))


def files() -> Mapping[str, bytes]:
    """The files below docs/stories/."""
    return build().files


async def _play(folder: Path) -> Made:
    made: dict[str, bytes] = {}
    tellers: list[Teller] = []
    async with stage(folder, agents=()) as scene:
        made |= _pins(scene.world)
        for tell in STORIES:
            if tell is stampede.tell:
                made["ledger.export"] = scene.world.export()
            told, page = await tell(scene)
            made[f"{told.slug}.md"] = page.encode()
            made |= {f"{told.slug}/{name}": data + b"\n" for name, data in told.receipts.items()}
            tellers.append(told)
            await scene.wait(APART_MS)
        made["README.md"] = _index(scene, folder, tellers, made["ledger.export"]).encode()
    return Made(made, tuple(tellers))


def _pins(world: World) -> dict[str, bytes]:
    document = KeyDocument(ORIGIN, world.genesis, 1, None, world.signer.lines)
    root = root_vkey(ORIGIN, key_of("root").public_key).vkey
    return {"root.vkey": f"{root}\n".encode(), "keys.note": signed_key_document(document, key_of("root"))}


_INDEX = """
    They were played by a script (`tests/stories`, part of `make docs`) on the real core of the gateway, with a clock
    moved by hand and fixed keys. What is typed is what you would type; behind the arrow stands the entry that the
    request became, with a few of its members. Names stand for keys there, and `+20s` for twenty seconds after the story
    began: the receipts have the keys and times themselves.

    Each page names the receipts that are kept beside it. Check them in this folder, with nothing but the verifier:
"""


def _index(scene: Stage, folder: Path, tellers: list[Teller], ledger: bytes) -> str:
    file = folder / "ledger.export"
    file.write_bytes(ledger)
    report = check_ledger(file, scene.world.keyring).as_text()
    rows = "\n".join(f"| [{told.title}]({told.slug}.md) | {told.steps[-1].at_ms / 1_000:g} s |" for told in tellers)
    return f"""# Four stories, with their receipts

What leases, lines and admissions are for.

| story | how long it takes |
| --- | --- |
{rows}

{prose(_INDEX)}

```bash
tallystick-verify receipt release/1-ada-granted.json {PINS}
```

The ledger of the first three is here as well, to be decided again by anybody. (The fourth goes on in the same ledger.)

```
$ tallystick-verify ledger ledger.export {PINS}
{report}
```

The keys' seeds are hashes of their names: never use them for anything else.
"""
