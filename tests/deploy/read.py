"""Reads the files of `deploy/` as their programs would, as far as that can be had without them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]  # ships no types

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"


class StrictLoader(yaml.SafeLoader):  # type: ignore[misc]  # a class without types
    """Refuses a key that stands twice: YAML lets the last one win, without a word."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        assert len(keys) == len(set(keys)), f"a key stands twice: {keys}"
        made: dict[Any, Any] = super().construct_mapping(node, deep)
        return made


def read_yaml(name: str) -> dict[str, Any]:
    """Return a YAML file of `deploy/`, merge keys resolved."""
    found: dict[str, Any] = yaml.load((DEPLOY / name).read_text("utf-8"), StrictLoader)
    return found


def read_unit(name: str) -> dict[str, list[str]]:
    """Return the settings of a systemd unit, `Section.Name` to its values in order."""
    found: dict[str, list[str]] = {}
    section = ""
    for line in (DEPLOY / "systemd" / name).read_text("utf-8").splitlines():
        if header := re.fullmatch(r"\[(\w+)\]", line):
            section = header[1]
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(f"{section}.{key}", []).append(value)
    return found


def read_proxy() -> dict[str, list[str]]:
    """Return the sections of the proxy's file, `kind name` to their lines without comments."""
    found: dict[str, list[str]] = {}
    section = ""
    for line in (DEPLOY / "haproxy.cfg").read_text("utf-8").splitlines():
        if line and not line.startswith((" ", "#")):
            section = line
            found[section] = []
        elif words := line.split("#")[0].split():
            found[section].append(" ".join(words))
    return found


def instructions(name: str) -> Iterator[tuple[str, str]]:
    """Yield (instruction, rest) of a Dockerfile, continued lines joined."""
    text = re.sub(r"\\\n\s*", "", (DEPLOY / name).read_text("utf-8"))
    for line in text.splitlines():
        if line and not line.startswith("#"):
            word, _, rest = line.partition(" ")
            yield word, rest
