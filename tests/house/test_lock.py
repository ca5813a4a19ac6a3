"""The lock files: hashed, complete, and without a word about where a package comes from."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOCKS = sorted(path.name for path in (ROOT / "requirements").glob("*.txt"))
# Which parts of pyproject.toml each lock file must hold.
PARTS = {
    "verifier.txt": ((), ()),
    "base.txt": (("gateway", "rules"), ("build",)),
    "test.txt": (("gateway", "rules", "client", "export", "keys", "postgres"), ("build", "test")),
    "gateway.txt": (("gateway", "rules", "postgres"), ("build",)),
    "patroni.txt": ((), ("patroni",)),
    "ha.txt": ((), ("ha",)),
    "peers.txt": ((), ("peers",)),
    "peers-newer.txt": ((), ("peers-newer",)),
}


def locked(name: str) -> dict[str, list[str]]:
    """Each package of a lock file with its hashes."""
    packages: dict[str, list[str]] = {}
    for line in (ROOT / "requirements" / name).read_text("utf-8").splitlines():
        if found := re.match(r"([a-z0-9][a-z0-9._-]*)==", line):
            packages[found[1]] = current = []
        elif found := re.fullmatch(r"    --hash=(sha256:[0-9a-f]{64})(?: \\)?", line):
            current.append(found[1])
    return packages


def required(name: str) -> set[str]:
    """The direct requirements that pyproject.toml puts into a lock file, by normalised name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    extras, groups = PARTS[name]
    lines = [] if name.startswith(("peers", "ha", "patroni")) else list(project["project"]["dependencies"])
    for extra in extras:
        lines += project["project"]["optional-dependencies"][extra]
    for group in groups:
        lines += [line for line in project["dependency-groups"][group] if isinstance(line, str)]
    return {re.split(r"[^A-Za-z0-9._-]", line)[0].lower().replace("_", "-") for line in lines}


def test_every_lock_file_is_known() -> None:
    assert sorted(PARTS) == LOCKS


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_file_names_no_host_and_no_index(name: str) -> None:
    text = (ROOT / "requirements" / name).read_text("utf-8")
    assert "://" not in text
    assert not re.search(r"^\s*--(?!hash=)", text, re.MULTILINE)
    assert not re.search(r"\b[a-z0-9-]+\.(org|io|com|net|dev)\b", text)


@pytest.mark.parametrize("name", LOCKS)
def test_every_locked_package_has_hashes(name: str) -> None:
    assert locked(name)
    assert [package for package, hashes in locked(name).items() if not hashes] == []


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_file_holds_what_the_project_asks_for(name: str) -> None:
    assert required(name) - set(locked(name)) == set()


def test_the_verifier_needs_pynacl_and_what_pynacl_needs() -> None:
    assert set(locked("verifier.txt")) == {"pynacl", "cffi", "pycparser"}


def test_one_version_of_each_package_everywhere() -> None:
    pins: dict[str, set[str]] = {}
    for name in LOCKS:
        for package, version in re.findall(
            r"^([a-z0-9][a-z0-9._-]*)==([^ ;\\]+)", (ROOT / "requirements" / name).read_text("utf-8"), re.MULTILINE
        ):
            pins.setdefault(package, set()).add(version)
    assert {package: versions for package, versions in pins.items() if len(versions) > 1} == {}
