"""The rule set to begin with, and what it should say: `starter.cedar` and `starter.jsonl` beside this file."""

from __future__ import annotations

from importlib.resources import files


def starter_rules() -> str:
    """Return the Cedar text of the starter set."""
    return files("gateway.rules").joinpath("starter.cedar").read_text("utf-8")


def starter_cases() -> str:
    """Return its cases, JSON lines."""
    return files("gateway.rules").joinpath("starter.jsonl").read_text("utf-8")
