"""What single programs write: one row each, and everything that has no row can't be seen.

A row takes the words behind the program's name and returns what it writes, or raises CantSee.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import PurePosixPath

from gateway.guard.shell_options import Found, IsFolder, Options, Write, as_it_is, literal, place, split
from gateway.guard.shell_words import CantSee, Word

Row = Callable[[Sequence[Word], IsFolder], list[Write]]
_FOLLOWING = frozenset(("L", "H", "dereference"))  # options: what links lead to is touched as well
NUMBER = re.compile(r"-[0-9]+")


def reads(_words: Sequence[Word], _is_folder: IsFolder) -> list[Write]:
    """A program that writes no file whatever its words are."""
    return []


def each(
    words: Sequence[Word],
    is_folder: IsFolder,
    *,
    options: Options,
    skipped: int = 0,
    trees: str = "",
    is_gone: bool = False,
) -> list[Write]:
    """Every operand is written, but for the first `skipped`; with an option of `trees` folders with all in them."""
    found, operands = split(words, options)
    is_deep = any(option in found for option in trees.split())
    if len(operands) <= skipped:
        return []
    writes = [place(word, is_deep and is_folder(word.text), not is_gone, is_gone) for word in operands[skipped:]]
    is_there = bool(trees or is_gone) and not _FOLLOWING & found.keys()
    return [as_it_is(write) for write in writes] if is_there else writes


def modes(words: Sequence[Word], is_folder: IsFolder) -> list[Write]:
    """chmod, chown, chgrp: all operands but the first, which is the mode or the owner."""
    options = Options("cfvRhHLP", "", "recursive verbose changes quiet")
    if words and re.fullmatch("-[rwxXst]+", words[0].text):
        words = [Word("mode"), *words[1:]]
    return each(words, is_folder, options=options, skipped=1, trees="R recursive")


def builtin(words: Sequence[Word], _is_folder: IsFolder) -> list[Write]:
    """`test` and `printf` write nothing; with -v they may run what stands in the name of a variable."""
    if any((word.is_dynamic and not word.is_quoted) or word.text.startswith("-v") for word in words):
        raise CantSee("the option -v, or a word that may become it")
    return []


def moves(words: Sequence[Word], is_folder: IsFolder) -> list[Write]:
    """Both the old and the new name are written (scenario 30)."""
    long = "force interactive no-clobber verbose update no-target-directory strip-trailing-slashes"
    found, operands = split(words, Options("finvuT", "tS", long, "target-directory"))
    if "S" in found:
        raise CantSee("the option -S")
    target, sources = _target(found, operands)
    old = [as_it_is(place(word, is_folder(word.text), False, True)) for word in sources]
    return old + _arrivals(target, sources, is_folder, "T" in found or "no-target-directory" in found, True)


def copies(words: Sequence[Word], is_folder: IsFolder) -> list[Write]:
    """The new name is written."""
    long = (
        "force interactive no-clobber verbose update recursive archive no-target-directory no-dereference dereference"
    )
    found, operands = split(words, Options("afinvuTrRpPLHdx", "t", long + " preserve", "target-directory"))
    target, sources = _target(found, operands)
    writes = _arrivals(target, sources, is_folder, "T" in found or "no-target-directory" in found, False)
    return [replace(write, like=None) for write in writes] if _FOLLOWING & found.keys() else writes


def installs(words: Sequence[Word], is_folder: IsFolder) -> list[Write]:
    """`install`: copies, or with -d makes folders."""
    found, operands = split(
        words, Options("cCpsvdDT", "mogt", "directory verbose", "mode owner group target-directory")
    )
    if "d" in found or "directory" in found:
        return [place(word) for word in operands]
    target, sources = _target(found, operands)
    return _arrivals(target, sources, is_folder, "T" in found, False)


def links(words: Sequence[Word], is_folder: IsFolder) -> list[Write]:
    """The name of the link is written; what it leads to is not."""
    found, operands = split(words, Options("sfnvrTi", "t", "symbolic force no-dereference verbose relative"))
    if len(operands) == 1 and "t" not in found:
        return [Write(PurePosixPath(literal(operands[0])).name or ".", False, False)]
    target, sources = _target(found, operands)
    arrivals = _arrivals(target, sources, is_folder, "T" in found, True)
    return [Write(one.path, one.is_tree and any(word.is_glob for word in sources), False) for one in arrivals]


def _target(found: Found, operands: list[Word]) -> tuple[Word, list[Word]]:
    named = [value for name in ("t", "target-directory") for value in found.get(name, ())]
    if len(named) > 1:
        raise CantSee("more than one target")
    if named:
        return Word(named[0] + "/"), operands
    if len(operands) < 2:
        raise CantSee("fewer names than it needs")
    return operands[-1], operands[:-1]


def _arrivals(target: Word, sources: list[Word], is_folder: IsFolder, is_exact: bool, is_moved: bool) -> list[Write]:
    """Return where the sources arrive: at the target, or below it when that is a folder."""
    literal(target)
    if any(word.is_glob for word in sources):
        return [place(target, True)]
    is_into = not is_exact and (target.text.endswith("/") or is_folder(target.text) or len(sources) > 1)
    return [_arrival(target, word, is_folder(word.text), is_into, is_moved) for word in sources]


def _arrival(target: Word, source: Word, is_tree: bool, is_into: bool, is_moved: bool) -> Write:
    like = source.text if is_tree else None
    if not is_into:
        return replace(place(target, is_tree, not is_moved), like=like)
    name = PurePosixPath(source.text).name
    if name in ("", "..") or source.text.rstrip("/").endswith("."):
        return place(target, True)
    return Write(f"{target.text.rstrip('/') or '/'}/{name}", is_tree, not is_moved, like=like)


def dd(words: Sequence[Word], _is_folder: IsFolder) -> list[Write]:
    """`dd of=FILE`."""
    return [Write(text[3:]) for text in map(literal, words) if text.startswith("of=") and text != "of="]


def rsync(words: Sequence[Word], _is_folder: IsFolder) -> list[Write]:
    """The last name with all below it, when it is on this machine."""
    long = "archive recursive verbose delete checksum update quiet progress stats existing ignore-existing compress"
    _, operands = split(words, Options("avrzuqcnPhtlpgoDH", "", long, "exclude include"))
    if len(operands) < 2:
        return []
    target = literal(operands[-1])
    if ":" in target:
        return []
    return [place(operands[-1], True)]


def sort(words: Sequence[Word], _is_folder: IsFolder) -> list[Write]:
    """`sort -o FILE`."""
    found, _ = split(words, Options("bdfghiMnrRuVszcCm", "kto", "reverse unique numeric-sort", "output key"))
    return [Write(value) for name in ("o", "output") for value in found.get(name, ())]


def uniq(words: Sequence[Word], _is_folder: IsFolder) -> list[Write]:
    """Its second name is what it writes."""
    _, operands = split(words, Options("cdDiuz", "fsw", "count repeated unique ignore-case"))
    return [place(word) for word in operands[1:2]]


def curl(words: Sequence[Word], _is_folder: IsFolder) -> list[Write]:
    """`curl -o FILE`."""
    found, _ = split(
        words,
        Options("sSfLkiIv", "XHdomuA", "silent show-error fail location head include", "request header data output"),
    )
    return [Write(value) for name in ("o", "output") for value in found.get(name, ()) if value != "-"]


# Commands of a sed script that write, read and run nothing; a substitution with other flags than these may.
_ADDRESS = r"(?:[0-9]+|\$|/(?:[^/\\\n]|\\.)*/)"
_SUBSTITUTION = r"s(?P<d>[/|#,@:_!%])(?:(?!(?P=d))[^\\\n]|\\.)*(?P=d)(?:(?!(?P=d))[^\\\n]|\\.)*(?P=d)[gpiI0-9]*"
_SED = re.compile(rf"\s*(?:{_ADDRESS}(?:,{_ADDRESS})?\s*!?\s*)?(?:{_SUBSTITUTION}|[dpqD=])?\s*(?:;|\n|$)")


def sed(words: Sequence[Word], _is_folder: IsFolder) -> list[Write]:
    """`sed -i` writes its files, and a copy of each where a suffix is given."""
    in_place, suffix, rest = False, "", list[Word]()
    for word in words:
        name = "-i" if word.text.startswith("-i") else "--in-place" if word.text.startswith("--in-place") else ""
        if name and not word.is_dynamic:
            in_place, suffix = True, literal(word)[len(name) :].removeprefix("=")
        else:
            rest.append(word)
    found, operands = split(rest, Options("nErsuz", "e", "quiet silent regexp-extended null-data", "expression"))
    scripts = [value for name in ("e", "expression") for value in found.get(name, ())]
    if in_place and not scripts and operands and operands[0].is_quoted and not operands[0].text:
        operands = operands[1:]  # BSD: an empty suffix is a word of its own
    if not scripts:
        scripts, operands = [literal_script(word) for word in operands[:1]], operands[1:]
    if not all(map(_is_plain_sed, scripts)):
        raise CantSee("a sed script that may do more than substitute")
    if not in_place:
        return []
    if "*" in suffix or "/" in suffix:
        raise CantSee("a suffix that is a pattern")
    copies_too = [Write(literal(word) + suffix, False, False) for word in operands] if suffix else []
    return [place(word, False, False) for word in operands] + copies_too  # a new file takes the place of a link


def literal_script(word: Word) -> str:
    """Return a script; unquoted it may hold signs that are patterns only where files have such names."""
    if word.is_dynamic:
        raise CantSee("a script that is an expansion")
    return word.text


def _is_plain_sed(script: str) -> bool:
    at = 0
    while at < len(script):
        found = _SED.match(script, at)
        if found is None or found.end() == at or _hides_its_end(found[0], found["d"]):
            return False
        at = found.end()
    return True


def _hides_its_end(command: str, delimiter: str | None) -> bool:
    """Between brackets a delimiter is a letter like others for some, the end of the pattern for this reader."""
    return any(re.search(rf"\[[^\]]*{re.escape(mark)}", command) for mark in ("/", delimiter or "/"))


def find(words: Sequence[Word], _is_folder: IsFolder) -> list[Write]:
    """It only looks, unless it is told to do something with what it finds."""
    acting = ("-delete", "-exec", "-ok", "-fprint", "-fls")
    if any(word.is_dynamic or word.text.startswith(acting) for word in words):
        raise CantSee("find with an action")
    return []


def ripgrep(words: Sequence[Word], _is_folder: IsFolder) -> list[Write]:
    """It only reads, unless it is told to run something first."""
    if any(word.is_dynamic or word.text.startswith("--pre") for word in words):
        raise CantSee("rg with a program of its own, or an expansion")
    return []


def setting(words: Sequence[Word], _is_folder: IsFolder) -> list[Write]:
    """`set -e` and the like; what changes how words are read can't be followed."""
    texts = [literal(word) for word in words]
    while texts:
        text = texts.pop(0)
        if re.fullmatch(r"-[eux]*o", text) and texts and texts[0] in ("pipefail", "errexit", "nounset"):
            texts.pop(0)
        elif re.fullmatch(r"-[eux]+", text) is None:
            raise CantSee("set")
    return []


def sees_not(reason: str, _words: Sequence[Word], _is_folder: IsFolder) -> list[Write]:
    """A program that writes somewhere, or runs something, that its words don't tell."""
    raise CantSee(reason)


READERS = (
    "ls cat head tail wc grep egrep fgrep cut tr nl paste comm cmp diff stat du df pwd echo true false : "
    "basename dirname realpath readlink which type whoami id uname sleep seq md5sum sha1sum sha256sum sha512sum cksum "
    "od strings tac rev fold expand join jq column printenv ps wait exit return date"
).split()
_RUNNERS = (
    "sh bash dash zsh ksh fish python python3 node deno bun perl ruby php lua awk gawk make just npm npx pnpm yarn "
    "cargo go pytest tox uv pip docker ssh eval source . exec xargs parallel trap alias sudo su doas nohup setsid"
).split()
PROGRAMS: Mapping[str, Row] = {
    **dict.fromkeys(READERS, reads),
    **dict.fromkeys(("test", "[", "printf"), builtin),
    **{name: partial(sees_not, f"{name} runs what it is given") for name in _RUNNERS},
    "find": find,
    "rg": ripgrep,
    "set": setting,
    "sed": sed,
    "sort": sort,
    "uniq": uniq,
    "curl": curl,
    "tee": partial(each, options=Options("aip", "", "append")),
    "touch": partial(each, options=Options("acm", "dtr", "no-create", "date reference")),
    "mkdir": partial(each, options=Options("pv", "m", "parents verbose", "mode")),
    "rmdir": partial(each, options=Options("v", "", "verbose"), is_gone=True),
    "rm": partial(
        each, options=Options("rRfivdI", "", "recursive force verbose dir"), trees="r R recursive", is_gone=True
    ),
    "unlink": partial(each, options=Options(), is_gone=True),
    "truncate": partial(each, options=Options("co", "sr", "no-create", "size reference")),
    "chmod": modes,
    "chown": modes,
    "chgrp": modes,
    "mv": moves,
    "cp": copies,
    "install": installs,
    "ln": links,
    "dd": dd,
    "rsync": rsync,
    "patch": partial(sees_not, "patch writes what the patch names"),
    "tar": partial(sees_not, "tar may write what an archive names"),
    "unzip": partial(sees_not, "unzip writes what an archive names"),
}
