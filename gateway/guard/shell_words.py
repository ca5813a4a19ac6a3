"""Cuts a command line into words, operators and redirections, as a POSIX shell would: pure, and never a guess.

What is cut is literal text with its quotes taken off. A word that the shell would still change says so: `is_dynamic`
(a parameter, a tilde, braces: nobody knows here what it becomes) or `is_glob` (it becomes names below a known folder).
Command substitutions are cut like lines of their own and hang on their word. Everything else that runs code on the side
or needs more of the grammar than this raises CantSee.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

LINE_CHARACTERS_MAX = 65_536
DEPTH_MAX = 8  # substitutions inside substitutions
_BLANK = " \t"
_UNENDED = "quotes, brackets or a here-document that don't end"
_OPERATORS = ("&&", "||", ";;", "|&", ";", "|", "&", "\n", "(", ")")
_REDIRECTIONS = ("&>>", "&>", "<<<", "<<-", "<<", "<>", "<&", ">>", ">|", ">&", "<", ">")
_SPECIAL = frozenset(";|&<>()\n \t")
# What may stand between ${ and }: a name, and what is done to its value, without anything that runs or looks up more.
_PARAMETER = re.compile(r"#?[A-Za-z0-9_]+|[A-Za-z0-9_]+(?::?[-+?=]|##?|%%?|//?|:)[A-Za-z0-9_./ *:,-]*|[@*#?$!-]")
_NUMBERS = re.compile(r"<[0-9]*-[0-9]*>")  # zsh: a pattern
_EXPANDS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789{@*#?-$!")


class CantSee(Exception):
    """This reader can't tell what the line writes; the text says why, to follow "can't see: "."""


@dataclass(slots=True)
class Word:
    """A word without its quotes. `text` is literal as far as neither flag is set."""

    text: str = ""
    is_dynamic: bool = False
    is_glob: bool = False
    is_quoted: bool = False
    inner: list[list[Token]] = field(default_factory=list)  # what its substitutions run


@dataclass(slots=True)
class Operator:
    """What stands between commands."""

    text: str


@dataclass(slots=True)
class Redirect:
    """A redirection and what it names; for a here-document that is its delimiter, and the body is gone."""

    text: str
    target: Word


Token = Word | Operator | Redirect


def cut(line: str) -> list[Token]:
    """Return the tokens of a whole line (or of several); CantSee."""
    if len(line) > LINE_CHARACTERS_MAX:
        raise CantSee(f"a command of more than {LINE_CHARACTERS_MAX:,} characters")
    if "\0" in line or "\r" in line:
        raise CantSee("a control character in the command")
    return _Cutter(line).tokens()


class _Cutter:
    def __init__(self, line: str) -> None:
        self._line = line
        self._at = 0
        self._depth = 0
        self._documents: list[tuple[Word, bool]] = []  # delimiters whose bodies come after the next newline

    def tokens(self, end: str = "") -> list[Token]:
        """Cut up to the parenthesis `end` and past it, or to the end of the line."""
        found: list[Token] = []
        while True:
            self._skip_blank()
            if self._at >= len(self._line):
                if end or self._documents:
                    raise CantSee(_UNENDED)
                return found
            if end and self._line[self._at] == end:
                self._at += 1
                return found
            found.append(self._token())

    def _skip_blank(self) -> None:
        line = self._line
        while line.startswith(("\\\n", *_BLANK), self._at):
            self._at += 2 if line[self._at] == "\\" else 1
        if self._at < len(line) and line[self._at] == "#":
            newline = line.find("\n", self._at)
            self._at = len(line) if newline < 0 else newline

    def _token(self) -> Token:
        for text in _REDIRECTIONS:
            if self._line.startswith(text, self._at):
                return self._redirect(text)
        for text in _OPERATORS:
            if self._line.startswith(text, self._at):
                self._at += len(text)
                if text == "\n":
                    self._skip_documents()
                return Operator(text)
        start = self._at
        word = self._word()
        is_descriptor = self._line[start : self._at].isdigit() and self._peek() in ("<", ">")
        return self._token() if is_descriptor else word

    def _peek(self, offset: int = 0) -> str:
        return self._line[self._at + offset : self._at + offset + 1]

    def _redirect(self, text: str) -> Redirect:
        if _NUMBERS.match(self._line, self._at):
            raise CantSee("a pattern of numbers")
        self._at += len(text)
        if self._peek() == "(":
            raise CantSee("a process substitution")
        self._skip_blank()
        target = self._word()
        if not target.text and not target.is_quoted and not target.is_dynamic:
            raise CantSee("a redirection without a name")
        if text in ("<<", "<<-"):
            self._documents.append((target, text == "<<-"))
        return Redirect(text, target)

    def _skip_documents(self) -> None:
        for delimiter, is_indented in self._documents:
            body: list[str] = []
            while True:
                if self._at >= len(self._line):
                    raise CantSee("a here-document that doesn't end")
                newline = self._line.find("\n", self._at)
                newline = len(self._line) if newline < 0 else newline
                row = self._line[self._at : newline]
                self._at = newline + 1
                if (row.lstrip("\t") if is_indented else row) == delimiter.text:
                    break
                body.append(row)
            if not delimiter.is_quoted and any("$(" in row or "`" in row or row.endswith("\\") for row in body):
                raise CantSee("a here-document that is not plain text")
        self._documents = []

    # -- words ---------------------------------------------------------------------------------------------------------

    def _word(self) -> Word:
        word, start = Word(), self._at
        parts: list[str] = []
        while self._at < len(self._line) and self._peek() not in _SPECIAL:
            letter = self._peek()
            self._at += 1
            if letter == "'":
                parts.append(self._until("'"))
                word.is_quoted = True
            elif letter == '"':
                parts.append(self._double(word))
                word.is_quoted = True
            elif letter == "\\":
                if self._peek() != "\n":  # which goes on with the word on the next line
                    parts.append(self._peek())
                    word.is_quoted = True
                self._at += 1
            elif letter in "$`":
                parts.append(self._expansion(letter, word))
            else:
                _mark(word, letter, self._at - 1 == start)
                parts.append(letter)
        word.text = "".join(parts)
        if word.text and self._peek() == "(":
            raise CantSee("a function, or a pattern with brackets")
        return word

    def _until(self, end: str) -> str:
        at = self._line.find(end, self._at)
        if at < 0:
            raise CantSee(_UNENDED)
        text = self._line[self._at : at]
        self._at = at + 1
        return text

    def _double(self, word: Word) -> str:
        parts: list[str] = []
        while True:
            letter = self._peek()
            self._at += 1
            if letter == '"':
                return "".join(parts)
            if not letter:
                raise CantSee(_UNENDED)
            if letter == "\\" and self._peek() in ("$", "`", '"', "\\", "\n"):
                parts.append(self._peek().strip("\n"))
                self._at += 1
            elif letter in "$`":
                parts.append(self._expansion(letter, word))
            else:
                parts.append(letter)

    def _expansion(self, letter: str, word: Word) -> str:
        """Pass over what follows a `$` or a back-tick; return the text if it is no expansion after all."""
        following = self._peek()
        if letter == "`":
            raise CantSee("a command substitution in back-ticks")
        if following == "(":
            return self._substitution(word)
        if following in ("'", '"', "["):
            raise CantSee("a quotation with escapes, or arithmetic")
        if not following or following not in _EXPANDS:
            return "$"
        word.is_dynamic = True
        self._at += 1
        if following == "{" and _PARAMETER.fullmatch(self._until("}")) is None:
            raise CantSee("an expansion that does more than name a value")
        return ""  # a plain name: what follows of it is taken for text, and the word is dynamic as a whole

    def _substitution(self, word: Word) -> str:
        if self._peek(1) == "(":
            raise CantSee("arithmetic")
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise CantSee("substitutions nested too deep")
        self._at += 1
        documents, self._documents = self._documents, []
        word.inner.append(self.tokens(")"))
        self._documents = documents
        self._depth -= 1
        word.is_dynamic = True
        return ""


def _mark(word: Word, letter: str, is_first: bool) -> None:
    if letter in "*?[":
        word.is_glob = True
    elif letter in "{}" or (letter == "~" and is_first) or letter == "^":
        word.is_dynamic = True  # braces, a tilde, and what some shells make of a caret
    elif letter == "=" and is_first:
        word.is_dynamic = True  # zsh looks up a program's path
