"""The commands that the pages print are commands that there are."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path

import pytest

from gateway.client.commands import _COMMANDS

ROOT = Path(__file__).resolve().parents[2]
PLACEHOLDERS = {"N": "1", "DATA/operator": "operator", "LABEL": "label"}


def printed(page: str) -> list[str]:
    """Return the client's commands in the fenced blocks of a page, without comments."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", (ROOT / page).read_text("utf-8"), re.S | re.M)
    lines = [line for kind, block in blocks if kind in ("", "bash") for line in block.splitlines()]
    names = "|".join(sorted({name.split()[0] for name in _COMMANDS}))
    return [re.split(r" (?:\|\||>) ", line)[0] for line in lines if re.match(rf"tallystick (?:{names})\b", line)]


@pytest.mark.parametrize("page", ["README.md", "docs/operating.md"])
def test_every_printed_command_parses(page: str) -> None:
    commands = printed(page)
    assert len(commands) >= 8
    for command in commands:
        _, *words = [PLACEHOLDERS.get(word, word) for word in shlex.split(command, comments=True)]
        both = " ".join(words[:2])
        name = both if both in _COMMANDS else words[0]
        parser, _ = _COMMANDS[name]()
        parser.parse_args(words[len(name.split()) :])  # exits with a complaint when there is no such thing


@pytest.mark.parametrize("page", ["README.md", "docs/operating.md"])
def test_every_option_that_a_page_names_exists(page: str) -> None:
    """In running text: `--give-up`, `--on-deadlock wait`, `lease renew --mode`."""
    text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text("utf-8"), flags=re.S | re.M)
    named = re.findall(r"`(?:tallystick )?((?:lease \w+|wait \w+|run|scheme \w+|trust)\b[^`]*)`", text)
    assert named
    for words in named:
        name = next(each for each in sorted(_COMMANDS, key=len, reverse=True) if words.startswith(each))
        verb = words.split()[1] if name in ("lease", "scheme") else ""
        parser, _ = _COMMANDS[name]()
        told = _help(parser, verb)
        assert all(option in told for option in re.findall(r"--[a-z-]+", words)), words


@pytest.mark.parametrize("name", _COMMANDS)
def test_help_speaks_of_options_and_not_of_the_protocol(name: str) -> None:
    parser, _ = _COMMANDS[name]()
    verbs = [verb for action in parser._actions if isinstance(action.choices, dict) for verb in action.choices]
    for told in (parser.format_help(), *(_help(parser, verb) for verb in verbs)):
        words = " ".join(told.split())
        assert not re.search(r"`wait: true`|\b202\b|Prefer|holder=me|ttlMs", words), words


def test_a_wrong_option_names_the_help_that_lists_the_right_ones(capsys: pytest.CaptureFixture[str]) -> None:
    parser, _ = _COMMANDS["lease"]()
    with pytest.raises(SystemExit):
        parser.parse_args(["acquire", "lock:a", "--forever"])
    assert capsys.readouterr().err == (
        "tallystick lease acquire: unrecognized arguments: --forever\nSee tallystick lease acquire --help.\n"
    )


def _help(parser: argparse.ArgumentParser, verb: str) -> str:
    for action in parser._actions if verb else ():  # argparse has no other way to a verb
        if isinstance(action.choices, dict):
            return str(action.choices[verb].format_help())
    return parser.format_help()
