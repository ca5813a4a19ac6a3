"""What the hook sees of a command line and what it can't: the list of docs/guards.md, row by row.

`python -m tests.house.docs` writes the rows with what the code makes of them; test_shell.py says what that has to be.
"""

from __future__ import annotations

from typing import NamedTuple

from gateway.guard.hook_hosts import HOSTS
from gateway.guard.hook_tools import TOOLS
from gateway.guard.shell import Reading, read

FOLDER = "/repo"
FOLDERS = frozenset(("/repo", "/repo/src", "/"))
ALL = True


class Row(NamedTuple):
    """`writes` as they are shown; `is_unseen`: more may be written."""

    line: str
    writes: tuple[str, ...] = ()
    is_unseen: bool = False


ROWS: tuple[Row, ...] = (
    # redirections
    Row("echo x > a", ("a",)),
    Row("echo x >> a 2> b", ("a", "b")),
    Row("make_up &>> a", ("a",), ALL),
    Row("echo x >| a; echo y 2>&1 >&b", ("a", "b")),
    Row(": <> a", ("a",)),
    Row("cat > a <<'END'\n$(rm b)\nEND", ("a",)),
    Row("cat > a <<END\n$(rm b)\nEND", (), ALL),
    Row("echo x > /dev/null 2>&1"),
    Row("echo x > $NAME", (), ALL),
    Row("echo x > ~/a", (), ALL),
    Row("tee -a a b < c", ("a", "b")),
    Row("diff <(ls) a", (), ALL),
    # programs
    Row("sed -i 's/a/b/' a", ("a",)),
    Row("sed -i.old -e 's/a/b/g' a", ("a", "a.old")),
    Row("sed -n '1,5p' a"),
    Row("sed 's/a/b/w c' a", (), ALL),
    Row("mv a b", ("a", "b")),
    Row("mv a src", ("a", "src/a")),
    Row("cp a b", ("b",)),
    Row("cp -r a b src", ("src/a", "src/b")),
    Row("cp a $TO", (), ALL),
    Row("rm -f a 'b c'", ("a", "b c")),
    Row("rm -rf src", ("src/**",)),
    Row("rm src/*.py", ("src/**",)),
    Row("rm {a,b}", (), ALL),
    Row("mkdir -p src/d && rmdir e", ("src/d", "e")),
    Row("touch a", ("a",)),
    Row("ln -s a b", ("b",)),
    Row("dd if=a of=b", ("b",)),
    Row("truncate -s 0 a", ("a",)),
    Row("install -m 644 a b", ("b",)),
    Row("rsync -a src/ b/", ("b/**",)),
    Row("rsync -a src/ host:b"),
    Row("chmod +x a", ("a",)),
    Row("chmod -R a-w src", ("src/**",)),
    Row("sort -o a b", ("a",)),
    Row("curl -sS -o a https://example.com", ("a",)),
    Row("curl -sSO https://example.com/a", (), ALL),
    Row("patch -p1 < a.diff", (), ALL),
    Row("tar xf a.tar", (), ALL),
    Row("ls -la | grep x | wc -l"),
    Row("find . -name '*.pyc'"),
    Row("find . -name '*.pyc' -delete", (), ALL),
    # git
    Row("git status && git diff && git log --oneline"),
    Row("git add -A && git commit -m \"$(cat <<'END'\nwhy\nEND\n)\""),
    Row("git commit --no-verify -m x", (), ALL),
    Row("git checkout -- a src", ("a", "src/**")),
    Row("git checkout main", (), ALL),
    Row("git checkout -b new"),
    Row("git restore a", ("a",)),
    Row("git restore --staged a"),
    Row("git mv a b", ("a", "b")),
    Row("git rm a", ("a",)),
    Row("git rm --cached a"),
    Row("git apply a.diff", (), ALL),
    Row("git stash", (), ALL),
    Row("git reset --hard", (), ALL),
    Row("git merge other", (), ALL),
    Row("git -C /elsewhere checkout -- a", (), ALL),
    # where it happens
    Row("cd src && rm a", ("src/a",)),
    Row("cd src; rm a", ("src/a",)),
    Row("cd nowhere && rm a", ("nowhere/a",)),
    Row("cd nowhere; rm a", (), ALL),
    Row('cd "$DIR" && rm a', (), ALL),
    Row("rm ../x", ("../x",)),
    Row("ln -s src d && touch d/x", ("d",), ALL),
    Row("mv a b && echo x > b", ("a", "b"), ALL),
    Row("mv a b && sed -i s/x/y/ b", ("a", "b", "b")),
    # what runs something else
    Row("python script.py", (), ALL),
    Row("python - <<'END'\nopen('a', 'w')\nEND", (), ALL),
    Row("bash -c 'rm a'", (), ALL),
    Row("make", (), ALL),
    Row("./run.sh", (), ALL),
    Row("eval rm a", (), ALL),
    Row("ls | xargs rm", (), ALL),
    Row("$TOOL a", (), ALL),
    Row("(rm a)", ("a",), ALL),
    Row("for f in a b; do rm $f; done", (), ALL),
    Row("if true; then rm a; fi", (), ALL),
    Row("f() { rm a; }; f", (), ALL),
    Row("echo `rm a`", (), ALL),
    Row("echo $(rm a)", ("a",)),
    Row("PATH=. ls", (), ALL),
    Row("env timeout 5 touch a", ("a",)),
    Row("sudo touch a", (), ALL),
    Row("echo 'not closed", (), ALL),
)


def reading(line: str) -> Reading:
    """Read a row's line where it stands."""
    return read(line, FOLDER, FOLDERS.__contains__)


def shown(found: Reading) -> tuple[str, ...]:
    """Return the writes as a row has them."""
    return tuple(
        (write.path.removeprefix(f"{FOLDER}/") + ("/**" if write.is_tree else "")).replace("//", "/")
        for write in found.writes
    )


# -- for docs/guards.md ------------------------------------------------------------------------------------------------


def seen() -> str:
    """The command lines, what the hook sees of them and what it can't."""
    from tests.house.docs import table

    def cells(row: Row) -> tuple[str, str, str]:
        found = reading(row.line)
        unseen = "; ".join(dict.fromkeys(found.unseen))
        return _code(row.line), ", ".join(f"`{name}`" for name in shown(found)) or "–", unseen or "–"

    return table(("command line", "writes", "can't see"), map(cells, ROWS))


def handled() -> str:
    """The tools that have a row."""
    from tests.house.docs import table

    kinds: dict[tuple[str, str], list[str]] = {}
    for name, tool in TOOLS.items():
        members = ", ".join(f"`{member}`" for member in tool.members) or "–"
        kinds.setdefault((tool.kind, members), []).append(f"`{name}`")
    rows = ((kind, members, ", ".join(sorted(names))) for (kind, members), names in sorted(kinds.items()))
    return table(("kind", "read out of", "tools"), rows)


def hosts() -> str:
    """The hosts and what is known of them."""
    from tests.house.docs import table

    rows = (
        (
            f"`{host.name}`", f"`{host.event}`", f"`{host.tool}`, `{host.input}`, `{host.session}`",
            ", ".join(f"`{event}`" for event in sorted(host.ends)), "yes" if host.is_asking else "no: told deny",
            f"`{host.settings}`",
        )
        for host in HOSTS.values()
    )  # fmt: skip
    return table(("host", "event", "members", "gives back at", "can ask", "settings"), rows)


def _code(line: str) -> str:
    text = line.replace("\n", "⏎")
    return f"`` {text} ``" if "`" in text else f"`{text}`"
