"""The text of a rule set: where each policy begins, how deep its brackets go, where a word stands.

The engine's own words of a fault name no line, and its parser descends once for each bracket and each operator of a
chain: some hundred of them end the process that it runs in. So both are counted here, before the engine sees a text.
Source: docs/protocol.md 39.2; the tokens are those of Cedar: strings with backslashes, comments to the end of the line.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from verifier.rules import NESTING_MAX, OPERATORS_MAX, operators_in

_LONG = f"this policy has more than {OPERATORS_MAX} operators (if, when and unless count eight times); make two of it"
_PAIRS = {")": "(", "]": "[", "}": "{"}
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+"|//[^\n]*|\s+|\w+|&&|\|\||.', re.DOTALL)


class Statement(NamedTuple):
    """One policy as it was written, without comments before it: `line` is where it begins, counted from 1."""

    line: int
    text: str
    is_closed: bool = True


class Misplaced(NamedTuple):
    """A bracket or quote that makes the rest of a text unreadable, and a sentence for who wrote it."""

    line: int
    text: str


def statements(text: str) -> list[Statement]:
    """Return the policies of a text, each with its closing semicolon; one at the end that has none is not closed."""
    found: list[Statement] = []
    begin, end = None, 0
    for at, token in _tokens(text):
        if _is_space(token):
            continue
        begin, end = at if begin is None else begin, at + len(token)
        if token == ";":
            found.append(Statement(_line(text, begin), text[begin:end]))
            begin = None
    if begin is not None:
        found.append(Statement(_line(text, begin), text[begin:end], is_closed=False))
    return found


def misplaced(text: str) -> Misplaced | None:
    """Return the first bracket or quote that has no partner or lies deeper than any policy needs, or the first operator
    that is one too many."""
    open_at: list[tuple[str, int]] = []
    operators = 0
    for at, token in _tokens(text):
        operators = 0 if token == ";" else operators + operators_in(token)
        if operators > OPERATORS_MAX:
            return Misplaced(_line(text, at), _LONG)
        if token == '"':
            return Misplaced(_line(text, at), 'a text that begins with " here does not end')
        if token in _PAIRS.values() and len(token) == 1:
            open_at.append((token, at))
            if len(open_at) > NESTING_MAX:
                return Misplaced(
                    _line(text, at), f"brackets stand more than {NESTING_MAX} deep; make two policies of it"
                )
        elif token in _PAIRS and (not open_at or open_at.pop()[0] != _PAIRS[token]):
            return Misplaced(_line(text, at), f"the bracket {token} closes none that is open")
        elif token == ";" and open_at:
            bracket, begin = open_at[-1]
            return Misplaced(_line(text, begin), f"the bracket {bracket} is not closed before the semicolon")
    if open_at:
        return Misplaced(_line(text, open_at[-1][1]), f"the bracket {open_at[-1][0]} is not closed")
    return None


def line_of(statement: Statement, word: str) -> int:
    """Return the line where a word or sign first stands in a policy, and where the policy begins when it does not."""
    first = statement.text.find(word)
    if first < 0:
        return statement.line
    tokens = _lexed(statement.text)
    for at, token in islice(tokens, bisect_left(tokens, (first - 1,)), None):  # one before: the quote of a text
        is_there = token == word or (token[0] == '"' and token[1:-1] == word)
        if is_there or (not word.isalnum() and word and statement.text.startswith(word, at) and token[:2] != "//"):
            return statement.line + _line(statement.text, at) - 1
    return statement.line


@lru_cache(maxsize=1)
def _lexed(text: str) -> tuple[tuple[int, str], ...]:
    """Return the tokens of the policy that is looked at: a thousand faults in one ask for them a thousand times."""
    return tuple(_tokens(text))


def _tokens(text: str) -> Iterator[tuple[int, str]]:
    """Yield each token with its place, spaces and comments too: together they are the text."""
    return ((found.start(), found[0]) for found in _TOKEN.finditer(text))


def _is_space(token: str) -> bool:
    return token.isspace() or token.startswith("//")


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1
