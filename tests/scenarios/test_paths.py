"""Names of things: what is one thing, what is two, and what is no name at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.core.intake import Rejection
from tests.scenarios.stage import Stage, did, kind, member, stage

E_ACUTE, E_AND_ACUTE = "doc:caf\u00e9", "doc:cafe\u0301"


async def test_one_file_has_one_key_where_its_scheme_says_that_case_does_not_count(tmp_path: Path) -> None:
    """Scenarios 24, 31 (pi-agents#156): elsewhere case counts; forms of Windows and Unicode are refused with a hint."""
    async with stage(tmp_path) as scene:
        await scene.scheme("file", "exclusive", isFolding=True)
        await scene.scheme("doc", "exclusive", isUnicode=True)
        await scene.acquire("A", "file:Src/A.py", "repo:Src/A.py")
        held = await scene.acquire("B", "file:src/a.py")
        assert (held.text("error"), held.text("holder")) == ("lease_held", did("A"))
        assert member(held, "conflict", "resource") == "file:src/a.py"
        assert member(held, "conflict", "heldAs") == "file:Src/A.py"
        assert kind(await scene.acquire("B", "repo:src/a.py")) == "lease.granted"
        assert kind(await scene.acquire("B", E_ACUTE)) == "lease.granted"
        assert (await scene.acquire("B", "repo:caf\u00e9")).text("error") == "name_not_allowed"
        for name, hint in ((E_AND_ACUTE, E_ACUTE), ("repo:C:\\x", "use / instead"), ("c:/x", "empty segments")):
            with pytest.raises(Rejection, match=hint):
                await scene.acquire("B", name)


PAIRS = (
    ("src/*/test.py", "src/backend/*", "refused"),
    ("**/*.py", "src/**", "refused"),
    ("src/*.py", "src/a*", "refused"),
    ("README.md", "docs/README.md", "apart"),
    ("a/b/../c.py", "a/c.py", "refused"),
    ("Src/a.py", "src/a.py", "apart"),
    ("src/**", "src/a.py", "one"),
    ("src/**", "src", "one"),
    ("src/**", "src/lib/**", "one"),
    ("src/**", "src2/a.py", "apart"),
    ("src/lib/**", "src/library/a.py", "apart"),
    ("**", "a/b/c", "one"),
)


@pytest.mark.parametrize("one, other, verdict", PAIRS)
async def test_two_names_are_one_thing_or_two_and_patterns_are_no_names(
    one: str, other: str, verdict: str, tmp_path: Path
) -> None:
    """Scenario 26 (mcp_mail#80): exact names and whole sub-trees are decidable; whatever is more is refused."""
    async with stage(tmp_path) as scene:
        if verdict == "refused":
            with pytest.raises(Rejection):
                await scene.acquire("A", f"repo:{one}")
        else:
            assert await met(scene, one, other) == await met(scene, other, one) == (verdict == "one")


async def met(scene: Stage, first: str, second: str) -> bool:
    """Say whether a lease on the first name keeps another off the second."""
    lease = await scene.acquire("A", f"repo:{first}")
    asked = await scene.acquire("B", f"repo:{second}")
    await scene.release("A", lease)
    if kind(asked) == "lease.granted":
        await scene.release("B", asked)
        return False
    assert (asked.text("error"), member(asked, "conflict", "heldAs")) == ("lease_held", f"repo:{first}")
    return True
