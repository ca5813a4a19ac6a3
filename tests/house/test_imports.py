"""The arrows of the house: who may import what. A file imports from lower floors only (docs/architecture.md)."""

import ast
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OURS = {"verifier", "keys", "gateway", "tests", "bench"}
# Decisions must be repeatable, so nothing that differs between two runs may be at hand.
IMPURE = {
    "asyncio", "datetime", "http", "io", "logging", "multiprocessing", "os", "pathlib", "random", "secrets", "select",
    "selectors", "signal", "socket", "sqlite3", "subprocess", "tempfile", "threading", "time", "urllib", "uuid",
}  # fmt: skip
VERIFIER_MAY = {
    "__future__", "argparse", "base64", "binascii", "bisect", "collections", "concurrent", "contextlib",
    "dataclasses", "enum", "functools", "hashlib", "heapq", "io", "itertools", "json", "operator", "pathlib", "re",
    "struct", "sys", "types", "typing", "unicodedata",
}  # fmt: skip
# A file that opens others: without these a pipe or a link among them could hold it up or lead it away. An audit keeps
# where it stands: its folder is locked and brought to the disk, its position is a pickle read by a closed unpickler.
VERIFIER_ALSO = {
    "sig.py": {"nacl"},
    "source.py": {"os", "stat"},
    "tree.py": {"tempfile"},
    "folder.py": {"os", "fcntl"},
    "kept.py": {"pickle"},
    "position.py": {"pickle"},
    "cedar.py": {"cedarpy", "importlib"},  # an auditor's extra, and which version of it this is
}
ASKED_OF_THE_SYSTEM = {
    "source.py": {"open", "fstat"},
    "folder.py": {"open", "close", "fstat", "fsync", "O_CREAT", "O_NOFOLLOW", "O_RDONLY"},
}


@dataclass(frozen=True, slots=True)
class Rule:
    """What the files below `place` may import; the longest matching place counts.

    `floor` is the floor of docs/architecture.md. A file may import ours from lower floors and from `also`; `third`
    names the packages that are neither ours nor the standard library.
    """

    place: str
    floor: int
    third: frozenset[str] = frozenset()
    also: tuple[str, ...] = ()


def rule(place: str, floor: int, *third: str, also: tuple[str, ...] = ()) -> Rule:
    return Rule(place, floor, frozenset(third), also)


RULES = (
    rule("verifier", 0, also=("verifier",)),
    rule("verifier.sig", 0, "nacl", also=("verifier",)),
    rule("verifier.replay.cedar", 0, "cedarpy", also=("verifier",)),
    rule("keys", 1, "cryptography", also=("keys",)),
    rule("keys.signing", 1, "nacl", also=("keys",)),
    # An agent needs no gateway: its commands read the tables of actions and of refusals, and nothing else above.
    rule(
        "gateway.client",
        1,
        "aiohttp",
        "yarl",
        also=("keys", "gateway.client", "gateway.adapters", "gateway.actions", "gateway.core.refusal", "gateway.rules"),
    ),
    # Rules are checked where they are written, without a gateway, and the engine is imported nowhere else of ours.
    rule("gateway.rules", 1, "cedarpy", also=("gateway.rules",)),
    rule("gateway.rules.engine", 4, also=("gateway.rules",)),
    rule("gateway.rules.apart", 4, also=("gateway.rules",)),
    # Receipts for other tools: nothing of the gateway, and the one package that speaks CBOR.
    rule("gateway.adapters", 1, "cbor2", also=("keys", "gateway.adapters")),
    # Who watches a gateway runs none: a witness is made of the verifier and the keys.
    rule("gateway.witness", 2, "aiohttp", also=("gateway.witness",)),
    # Guards run beside an agent, with the client's packages only.
    rule("gateway.guard", 2, also=("gateway.guard",)),
    rule("gateway.core", 2, also=("gateway.core", "verifier")),
    rule("gateway.errors", 3),
    rule("gateway.store.contract", 3, also=("gateway.errors",)),
    rule("gateway.store", 4, "orjson", "sqlite_utils", also=("gateway.store",)),
    rule("gateway.store.postgres_link", 4, "psycopg", "orjson", also=("gateway.store",)),
    rule("gateway.store.postgres_listen", 4, "psycopg", also=("gateway.store",)),
    rule("gateway.store.postgres_watch", 4, "psycopg", also=("gateway.store",)),
    rule("gateway.store.postgres_text", 4, "psycopg", "orjson", also=("gateway.store",)),
    rule("gateway.signer", 4),
    rule("gateway.clock", 4),
    rule("gateway.config", 4),
    rule("gateway.actions", 4),
    rule("gateway.ledger", 5, "orjson", also=("gateway.ledger",)),
    rule("gateway.ledger.witness_http", 5, "aiohttp", "yarl", also=("gateway.ledger",)),
    rule("gateway.news", 5, also=("gateway.ledger",)),
    rule("gateway.service", 5, "orjson", also=("gateway.ledger", "gateway.news")),
    rule("gateway.bearer", 5, also=("gateway.ledger", "gateway.news", "gateway.service")),
    # Both ends of MCP use it: the door of the gateway, and the bridge on a machine that has the client's packages only.
    rule("gateway.mcp", 5, also=("gateway.mcp",)),
    rule("gateway.web", 6, "aiohttp", "yarl", "orjson", "prometheus_client", also=("gateway.web",)),
    rule("gateway", 7, "aiohttp", "orjson", "uvloop", "prometheus_client", also=("gateway",)),
)


def rule_of(module: str) -> Rule:
    """The rule of a module of ours: that of the longest place it lies in."""
    fitting = [r for r in RULES if module == r.place or module.startswith(r.place + ".")]
    return max(fitting, key=lambda r: len(r.place))


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path) -> set[str]:
    """Every module a file imports, also inside functions; `from a import b` is a.b where that is a module of ours."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: relative imports hide the arrow"
            assert node.module
            found |= {submodule(node.module, alias.name) for alias in node.names}
    return found


def submodule(module: str, name: str) -> str:
    inner = ROOT.joinpath(*module.split("."), name)
    return f"{module}.{name}" if inner.is_dir() or inner.with_suffix(".py").is_file() else module


def sources() -> list[Path]:
    return sorted(path for folder in ("verifier", "keys", "gateway") for path in (ROOT / folder).rglob("*.py"))


def is_allowed(module: str, imported: str) -> bool:
    """Whether a file may import a module, by its rule alone."""
    mine = rule_of(module)
    top = imported.split(".")[0]
    if top in OURS:
        inside = any(imported == place or imported.startswith(place + ".") for place in mine.also)
        return inside or (top != "tests" and top != "bench" and rule_of(imported).floor < mine.floor)
    return top in sys.stdlib_module_names or top in mine.third


def wrong_imports(module: str, imported: set[str]) -> list[str]:
    return sorted(f"{module} imports {name}" for name in imported if not is_allowed(module, name))


def test_every_arrow_points_down() -> None:
    assert [line for path in sources() for line in wrong_imports(module_of(path), imports_of(path))] == []


@pytest.mark.parametrize(
    ("module", "imported"),
    [
        ("verifier.wire", "nacl.bindings"),
        ("verifier.wire", "gateway.core.decide"),
        ("verifier.wire", "keys.did"),
        ("keys.files", "nacl.signing"),
        ("keys.files", "gateway.errors"),
        ("gateway.core.lease", "gateway.errors"),
        ("gateway.core.lease", "orjson"),
        ("gateway.store.sqlite", "gateway.ledger.sequencer"),
        ("gateway.web.handlers", "gateway.app"),
        ("gateway.client.agent", "gateway.web.problem"),
        ("gateway.client.agent", "gateway.store.sqlite"),
        ("gateway.witness.server", "gateway.web.limits"),
        ("gateway.witness.shelf", "gateway.core.records"),
        ("gateway.ledger.sequencer", "tests.world"),
    ],
)
def test_the_rule_refuses_an_arrow_that_points_up(module: str, imported: str) -> None:
    assert not is_allowed(module, imported)


def test_the_verifier_imports_only_the_named_part_of_the_standard_library() -> None:
    for path in (ROOT / "verifier").rglob("*.py"):
        tops = {name.split(".")[0] for name in imports_of(path)}
        assert tops - VERIFIER_MAY - {"verifier"} - VERIFIER_ALSO.get(path.name, set()) == set(), path.name


@pytest.mark.parametrize("name", ASKED_OF_THE_SYSTEM)
def test_the_verifier_opens_files_and_asks_the_system_for_nothing_else(name: str) -> None:
    tree = ast.parse((ROOT / "verifier/replay" / name).read_text("utf-8"))
    asked = [n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and ast.unparse(n.value) == "os"]
    assert set(asked) == ASKED_OF_THE_SYSTEM[name]


def test_a_pickle_is_read_by_the_closed_unpickler_alone() -> None:
    """`kept.py` reads, `position.py` writes; nothing else of the pickle module is used anywhere."""
    used = {path.name: imports_of(path) for path in (ROOT / "verifier").rglob("*.py")}
    asked = {name: {it for it in found if it.startswith("pickle")} for name, found in used.items()}
    assert {name: found for name, found in asked.items() if found} == {"kept.py": {"pickle"}, "position.py": {"pickle"}}
    tree = ast.parse((ROOT / "verifier/replay/kept.py").read_text("utf-8"))
    names = [alias.name for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module == "pickle"
             for alias in n.names]  # fmt: skip
    assert names == ["Unpickler"]


def test_the_engine_of_rules_is_imported_where_it_is_asked_for_alone() -> None:
    """Reading a ledger needs no engine; whoever has none gets a verdict all the same."""
    users = {path for path in (ROOT / "verifier").rglob("*.py") if "cedarpy" in imports_of(path)}
    assert {path.name for path in users} == {"cedar.py"}
    for node in ast.parse((ROOT / "verifier/replay/cedar.py").read_text("utf-8")).body:
        assert not isinstance(node, ast.Import | ast.ImportFrom) or "cedarpy" not in ast.unparse(node)


def test_the_verifier_asks_for_no_environment_and_no_code_by_name() -> None:
    forbidden = {"environ", "getenv", "__import__", "eval", "exec", "compile_command", "import_module"}
    for path in (ROOT / "verifier").rglob("*.py"):
        names = {n.attr if isinstance(n, ast.Attribute) else n.id for n in ast.walk(ast.parse(path.read_text("utf-8")))
                 if isinstance(n, ast.Attribute | ast.Name)}  # fmt: skip
        assert names & forbidden == set(), path.name


def test_the_core_is_pure() -> None:
    for path in (ROOT / "gateway/core").rglob("*.py"):
        tree = ast.parse(path.read_text("utf-8"))
        assert {name.split(".")[0] for name in imports_of(path)} & IMPURE == set(), path.name
        assert not any(isinstance(n, ast.AsyncFunctionDef | ast.Await | ast.Global) for n in ast.walk(tree)), path.name


def test_the_gateway_reads_the_wall_clock_in_one_place() -> None:
    """What a decision depends on comes from gateway/clock.py; client, demo, guards and witness have their own."""
    callers = set()
    for path in (ROOT / "gateway").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr in {"time", "time_ns", "clock_gettime_ns", "utcnow"}:
                callers.add(path.relative_to(ROOT / "gateway").as_posix())
            elif (
                isinstance(node, ast.ImportFrom)
                and node.module == "time"
                and {"time", "time_ns"} & {a.name for a in node.names}
            ):
                callers.add(path.relative_to(ROOT / "gateway").as_posix())
    assert {name for name in callers if not name.startswith(("client/", "demo/", "guard/", "witness/"))} <= {"clock.py"}


def test_no_file_shadows_a_module_of_the_standard_library_at_the_top() -> None:
    tops = {path.stem for path in ROOT.glob("*.py")} | {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert tops & sys.stdlib_module_names == set()


def test_the_verifier_runs_alone_in_an_empty_folder(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "verifier", tmp_path / "verifier", ignore=shutil.ignore_patterns("__pycache__"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

    def python(*arguments: str) -> str:
        command = [sys.executable, *arguments]  # the working folder comes first in the path, before an installed copy
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True).stdout

    assert python("-c", "import verifier; print(verifier.__file__)").startswith(str(tmp_path))
    assert {"receipt", "ledger"} <= set(re.findall(r"[a-z]+", python("-m", "verifier", "--help")))
