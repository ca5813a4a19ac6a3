"""What the pages say about databases: the README's commands are run, the roles are those that deploy/ makes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.read import DEPLOY, ROOT
from tests.pg.conftest import database_url  # noqa: F401  # a fixture

PASSWORDS = re.compile(r" PASSWORD :'\w+'")


def statements(text: str) -> list[str]:
    """Return the statements of an SQL text, without comments, passwords and psql's variables."""
    lines = [line.split("--")[0].strip() for line in text.splitlines() if not line.startswith("\\getenv")]
    return [PASSWORDS.sub("", line) for line in lines if line]


def test_the_roles_of_the_page_are_those_that_the_cluster_makes() -> None:
    page = (ROOT / "docs/operating.md").read_text("utf-8")
    (told,) = re.findall(r"```sql\n(.*?)```", page, re.S)
    script = (DEPLOY / "patroni/roles").read_text("utf-8").partition("<<'SQL'\n")[2].partition("SQL\n")[0]
    assert statements(told) == statements(script)


@pytest.mark.postgres
def test_the_commands_of_the_readme_make_a_ledger_and_a_second_node(tmp_path: Path, database_url: str) -> None:  # noqa: F811
    page = (ROOT / "README.md").read_text("utf-8").partition("## Past one machine")[2]
    block = page.partition("```\n")[2].partition("```")[0]
    block = re.sub(r"postgresql://\S+", database_url, block).replace(
        "tallystick init", "tallystick init --durability local"
    )
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ran = subprocess.run(
        ["bash", "-euxo", "pipefail", "-c", block], cwd=tmp_path, env={**os.environ, "PATH": path}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=120,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout
    assert block.count("tallystick ") == 4 and "settings  fit for durability local" in ran.stdout
    first, second = (sorted(file.name for file in (tmp_path / name).iterdir()) for name in ("DIR", "NODE2"))
    assert set(first) - set(second) == {"operator", "root"} and set(second) <= set(first)
