"""The reader of command lines: each row of its list, and bash itself as the judge of what it claims to see."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gateway.guard.shell import read
from gateway.guard.shell_options import Write
from gateway.guard.shell_programs import PROGRAMS
from tests.guard.shell_table import ROWS, Row, reading, shown

BASH = "/bin/bash"


@pytest.mark.parametrize("row", ROWS, ids=[row.line[:40] for row in ROWS])
def test_each_row_of_the_list(row: Row) -> None:
    """Scenario 15: what is seen through `>`, `sed -i`, `mv` and the others, and what is said not to be seen."""
    found = reading(row.line)
    assert (shown(found), bool(found.unseen)) == (row.writes, row.is_unseen), found


@pytest.mark.parametrize(
    "line",
    [
        "echo ${x:=$(rm y)}",
        "echo ${x@P}",
        "echo $((a[$(rm x)]))",
        "[[ -v a ]]",
        "test -v 'a[$(rm x)]'",
        "printf -v 'a[$(rm x)]' x",
        "ls $'a\\nb'",
        "echo $[x]",
        "IFS=x rm a",
        "GIT_DIR=x git status",
        "LD_PRELOAD=./x ls",
        "export PATH=.",
        "alias ls=rm",
        "trap 'rm x' EXIT",
        "set -- a; rm $1",
        "rm -- $x",
        "rm a$x",
        "rm a'b'$x",
        "rm *$x",
        "sed -i -f script a",
        "sed -e 's/a/b/' -e 'w out' a",
        "sed 's/a/b/e' a",
        "sed '1e rm x' a",
        "sort --compress-program=x a",
        "rg --pre ./x y",
        "git diff --output=a",
        "git log --ext-diff",
        "git -c alias.x=!rm x",
        "git config core.hooksPath /dev/null",
        "git commit -nm x",
        "git commit -anm x",
        "git push --no-verify",
        "cp --backup a b",
        "cp -t$x a",
        "mv -t a -t b c",
        "cd - && rm a",
        "cd && rm a",
        "pushd src; rm a",
        "ls || cd src; rm a",
        "ls | cd src && rm a",
        "cat <<A\\\nB\nA\nrm x",
        "cat <<A\nx\\\nA\nrm x",
        "rm <1-5>",
        "rm x^y",
        "=rm a",
        "ls;;rm a",
        "time -p rm a",
        "coproc rm a",
        "! { rm a; }",
        "\0",
        "ls\r\nrm a",
        "x" * 70_000,
        "$(" * 40,
        "((1))",
        "find . -exec rm {} +",
    ],
)
def test_what_may_hide_a_write_is_not_seen(line: str) -> None:
    assert reading(line).unseen, reading(line)


@pytest.mark.parametrize(
    ("line", "writes"),
    [
        ("rm a\\\nb", ("ab",)),
        ("rm a \\\n b", ("a", "b")),
        ("rm 'a\\\nb'", ("a\\\nb",)),
        ('rm "a\\"b"', ('a"b',)),
        ("rm a#b # c > d", ("a#b",)),
        ("cat <<'A' > x\nfoo\\\nA\nrm y", ("x", "y")),
        ("cat <<-A > x\n\tfoo\n\tA\nrm y", ("x", "y")),
        ("cat <<A <<B > x\n1\nA\n2\nB\nrm y", ("x", "y")),
        ("echo a2>b", ("b",)),
        ("echo 'a' 2>b", ("b",)),
        ("/bin/rm a && /usr/bin/env touch b", ("a", "b")),
        ("rm '*'", ("*",)),
        ("rm -- -f", ("-f",)),
        ("! rm a && time rm b", ("a", "b")),
        ("x=1 y=2 rm a", ("a",)),
        ("cp -r x/. src", ("src/**",)),
        ("ln -s ../a", ("a",)),
        ("a=$(rm x) ls", ("x",)),
        ('echo "$(rm x)" > a', ("x", "a")),
        ("cd src && cd .. && rm a", ("a",)),
        ("rm /x/../y", ("/x/../y",)),
        ("cd src && rm a & rm b", ("src/a", "b")),
    ],
)
def test_quotes_comments_and_documents_are_read_as_a_shell_does(line: str, writes: tuple[str, ...]) -> None:
    found = reading(line)
    assert (shown(found), found.unseen) == (writes, []), found


@given(st.text(max_size=200) | st.text(alphabet=" \t\n$(){}[]<>|&;'\"\\`#~*?=!^ab-", max_size=60))
@settings(max_examples=1_500, deadline=None)
@example("<<" * 30)
def test_no_text_makes_it_raise(line: str) -> None:
    for write in read(line, "/repo", lambda path: "a" in path).writes:
        assert write.path.startswith("/")


# -- bash as the judge -------------------------------------------------------------------------------------------------

_NAMES = st.sampled_from(["a", "b", "d", "d/x", "e", "'q r'", "d/*", "*", "n", "n/m", "../o", "$v", "l", "l/x", "k"])
_PIECES = st.one_of(
    st.builds("touch {}".format, _NAMES),
    st.builds("rm -f {} {}".format, _NAMES, _NAMES),
    st.builds("rm -rf {}".format, st.sampled_from(["d", "e", "n", "d/*", "'q r'", "l"])),
    st.builds("mv {} {}".format, _NAMES, _NAMES),
    st.builds("cp {} {}".format, _NAMES, _NAMES),
    st.builds("cp -r {} {}".format, _NAMES, _NAMES),
    st.builds("sed -i s/x/y/ {}".format, _NAMES),
    st.builds("mkdir {}".format, _NAMES),
    st.builds("ln -s {} {}".format, _NAMES, _NAMES),
    st.builds("echo x > {}".format, _NAMES),
    st.builds("cat a >> {}".format, _NAMES),
    st.builds("cat > {} <<E\nx\nE\n".format, _NAMES),
    st.builds("tee {} < a".format, _NAMES),
    st.builds("cd {}".format, st.sampled_from(["d", "e", "..", "d/..", "n", "l", "l/.."])),
    st.builds("echo $(touch {})".format, _NAMES),
    st.sampled_from(["true", "false", "ls", "v=n", "(touch a)", "if true; then touch b; fi"]),
    st.sampled_from(["install a n", "dd of=n if=a"]),
)  # fmt: skip
_LINES = st.lists(
    st.tuples(_PIECES, st.sampled_from([" && ", " || ", "; ", "\n", " | ", " & "])), min_size=1, max_size=4
)


@given(_LINES)
@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_bash_changes_nothing_that_was_neither_seen_nor_said_to_be_unseen(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[tuple[str, str]]
) -> None:
    """Scenario 15. The line is read, then run; every path that differs lies under a write, or something is unseen."""
    line = "".join(piece + ("\n" if piece.endswith("\n") else operator) for piece, operator in pieces)
    line = line.rstrip(" |&;") + "\nwait"
    outer = tmp_path_factory.mktemp("judged")
    folder = outer / "w"
    _fill(folder)
    before = _snapshot(outer)
    found = read(line, str(folder))
    ends = [(_end(write), write.is_tree) for write in found.writes]
    subprocess.run([BASH, "-c", line], cwd=folder, capture_output=True, timeout=20, env={"PATH": os.environ["PATH"]})
    after = _snapshot(outer)
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    missed = {path for path in changed if not any(_lies_under(path, *end) for end in ends)}
    assert found.unseen or not missed, (line, sorted(missed), found.writes)


def _fill(folder: Path) -> None:
    for name in ("d", "e"):
        (folder / name).mkdir(parents=True)
    for name in ("a", "b", "d/x", "d/y", "q r"):
        (folder / name).write_text("x\n")
    (folder / "l").symlink_to("d")
    (folder / "k").symlink_to("a")


def _snapshot(folder: Path) -> dict[str, object]:
    """Every path below, with what it is and holds."""
    found: dict[str, object] = {}
    for top, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            path = os.path.join(top, name)
            inode = os.lstat(path).st_ino
            if os.path.islink(path):
                found[path] = ("link", os.readlink(path))
            elif os.path.isdir(path):
                found[path] = "folder"
            else:
                found[path] = (inode, Path(path).read_bytes(), os.lstat(path).st_mtime_ns)
    return found


def _end(write: Write) -> str:
    """Where a write arrives as things are before the line runs, as the hook finds out."""
    folder, _, name = write.path.rstrip("/").rpartition("/")
    if write.is_followed or name in (".", ".."):
        return os.path.realpath(write.path)
    return os.path.join(os.path.realpath(folder), name)


def _lies_under(path: str, end: str, is_tree: bool) -> bool:
    """Say whether a path is what a write names; a tree is all below it."""
    return path == end or (is_tree and path.startswith(end.rstrip("/") + "/"))


def test_every_program_refuses_an_expansion_where_a_name_could_stand() -> None:
    """Whatever writes never takes `$x` for nothing."""
    quiet = [name for name in PROGRAMS if not read(f"{name} -- $x $y", "/w").unseen]
    assert not {name for name in quiet if read(f"{name} a b", "/w").writes}
