"""Words that must not be in a tracked file: paths of one machine, hosts of registries, keys."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Written with one-letter classes, so that this file does not find itself.
FORBIDDEN = {
    "a path of one machine": re.compile(r"(?<![\w.-])/(?:r[o]ot|h[o]me/[a-z]+|U[s]ers|w[o]rk)/[\w.-]"),
    "a registry's host": re.compile(
        r"py[p]i\.org|pythonh[o]sted\.org|registry\.n[p]mjs|proxy\.g[o]lang|deb\.d[e]bian", re.IGNORECASE
    ),
    "a private key": re.compile(r"PRIVATE KEY-----\s+[A-Za-z0-9+/=]{40,}"),
}
BYTES_MAX = 2_000_000


def tracked() -> list[str]:
    """Every file that git tracks, or that stands here where git is not."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode == 0:
        return [name for name in listed.stdout.decode().split("\0") if name and (ROOT / name).is_file()]
    return [str(path.relative_to(ROOT)) for path in ROOT.rglob("*") if path.is_file() and ".venv" not in str(path)]


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_tracked_file_holds(what: str) -> None:
    texts = ((name, (ROOT / name).read_text("utf-8", errors="replace")) for name in tracked())
    found = [f"{name}: {hit[0]}" for name, text in texts for hit in FORBIDDEN[what].finditer(text)]
    assert found == []


@pytest.mark.parametrize(
    ("what", "line"),
    [
        ("a path of one machine", "open('/{}/somebody/x')".format("home")),
        ("a path of one machine", "cd /{}/x".format("root")),
        ("a registry's host", "https://{}.org/simple".format("pypi")),
        ("a private key", "-----BEGIN ENCRYPTED PRIVATE KEY-----\n" + "MIIB" * 16),
    ],
)
def test_the_patterns_find_what_they_are_for(what: str, line: str) -> None:
    assert FORBIDDEN[what].search(line)


def test_no_tracked_file_is_large() -> None:
    assert [name for name in tracked() if (ROOT / name).stat().st_size > BYTES_MAX] == []


def test_no_lock_format_with_addresses_is_tracked() -> None:
    assert [name for name in tracked() if Path(name).name in {"uv.lock", "pylock.toml", "poetry.lock"}] == []
