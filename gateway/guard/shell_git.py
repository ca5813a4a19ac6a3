"""What `git` writes into the work tree; what it writes into its own folder is the commit-time check's.

Whatever moves the work tree to another state (a switch, a merge, a stash) changes files that the line does not name.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.guard.shell_options import IsFolder, Options, Write, as_it_is, literal, place, split
from gateway.guard.shell_programs import moves
from gateway.guard.shell_words import CantSee, Word

# Of the work tree they read, or touch only the index and git's own folder.
_QUIET = frozenset(
    "status log show diff add commit branch tag blame ls-files ls-tree rev-parse rev-list describe shortlog reflog "
    "cat-file remote fetch push merge-base name-rev count-objects var version check-ignore symbolic-ref".split()
)
_WRITES_OUT = ("--output", "--ext-diff", "--textconv", "--open-files-in-pager", "--exec", "--receive-pack")
_SKIPS_CHECK = ("--no-verify", "--no-verif", "--no-veri", "--no-ver")
_LETTERS_WITH_VALUE = "mFcCt"  # of git commit


def git(words: Sequence[Word], is_folder: IsFolder) -> list[Write]:
    """Return the paths that one git command writes in the work tree; CantSee when the line does not name them."""
    rest = list(words)
    while rest and rest[0].text in ("--no-pager", "--no-optional-locks"):
        rest.pop(0)
    if not rest:
        return []
    verb, rest = literal(rest[0]), rest[1:]
    if verb.startswith("-"):
        if verb in ("--version", "--help", "-v", "-h"):
            return []
        raise CantSee(f"git {verb}: another folder or configuration")
    if verb in _QUIET:
        return _quiet(verb, rest)
    if verb in _VERBS:
        return _VERBS[verb](rest, is_folder)
    raise CantSee(f"git {verb} may write what the line does not name")


def _quiet(verb: str, words: Sequence[Word]) -> list[Write]:
    for word in words:
        if word.is_dynamic and not word.is_quoted:
            raise CantSee("an option that is an expansion")
        if word.text.startswith(_WRITES_OUT):
            raise CantSee(f"git {verb} {word.text.partition('=')[0]}")
    if verb in ("commit", "push") and _skips_check(verb, words):
        raise CantSee(f"git {verb} without the check of its hook")
    return []


def _skips_check(verb: str, words: Sequence[Word]) -> bool:
    """Say whether -n or --no-verify is among the words; a value that looks like it counts too."""
    for word in words:
        if word.text.startswith(_SKIPS_CHECK):
            return True
        if verb == "commit" and word.text.startswith("-") and not word.text.startswith("--"):
            letters = word.text[1:]
            stop = min((letters.find(letter) for letter in _LETTERS_WITH_VALUE if letter in letters), default=None)
            if "n" in letters[:stop]:
                return True
    return False


def _checkout(words: Sequence[Word], is_folder: IsFolder) -> list[Write]:
    """Paths behind `--`; a new branch where one is; all else moves the work tree."""
    texts = [word.text for word in words if not word.is_dynamic]
    if "--" in texts and len(texts) == len(words):
        at = texts.index("--")
        options = [text for text in texts[:at] if text.startswith("-")]
        if set(options) <= {"-f", "-q", "--ours", "--theirs", "--quiet", "--force"}:
            return [_pathspec(word, is_folder) for word in words[at + 1 :]]
    if len(texts) == len(words) == 2 and texts[0] in ("-b", "-c", "--create"):
        return []
    raise CantSee("git checkout or switch moves the whole work tree; with -- before paths it names them")


def _restore(words: Sequence[Word], is_folder: IsFolder) -> list[Write]:
    found, operands = split(words, Options("SWq", "s", "staged worktree quiet ours theirs", "source"))
    is_index_only = ("S" in found or "staged" in found) and not ("W" in found or "worktree" in found)
    return [] if is_index_only else [_pathspec(word, is_folder) for word in operands]


def _rm(words: Sequence[Word], is_folder: IsFolder) -> list[Write]:
    found, operands = split(words, Options("rfq", "", "cached force quiet ignore-unmatch"))
    return [] if "cached" in found else [as_it_is(_pathspec(word, is_folder, True)) for word in operands]


def _reset(words: Sequence[Word], _is_folder: IsFolder) -> list[Write]:
    split(words, Options("q", "", "soft mixed quiet"))  # anything else moves the work tree
    return []


def _config(words: Sequence[Word], _is_folder: IsFolder) -> list[Write]:
    if words and literal(words[0]) in ("--get", "--get-all", "--list", "-l", "get", "list"):
        return []
    raise CantSee("git config may take the hooks away")


def _pathspec(word: Word, is_folder: IsFolder, is_gone: bool = False) -> Write:
    """A path for git: it reads patterns itself, in quotes too, and has signs of its own."""
    if word.text.startswith(":"):
        raise CantSee("a path with git's own signs")
    is_pattern = any(sign in word.text for sign in "*?[\\")
    spec = Word(word.text, word.is_dynamic, is_pattern, word.is_quoted)
    return place(spec, is_pattern or is_folder(word.text), False, is_gone)


_VERBS = {
    "checkout": _checkout,
    "switch": _checkout,
    "restore": _restore,
    "mv": moves,
    "rm": _rm,
    "reset": _reset,
    "config": _config,
}
