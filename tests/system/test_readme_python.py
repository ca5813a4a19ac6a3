"""The README's Python block runs as it stands, in a process whose profile points at a running gateway."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.system.process import ROOT, Gateway


def test_the_python_block_of_the_readme_holds_a_lease_and_gives_it_back(tmp_path: Path) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.S)
    with Gateway(tmp_path / "data", "--metrics-port", "0") as gateway:
        gateway.join(tmp_path / "home")
        done = subprocess.run(
            [sys.executable, "-"],
            input=block, capture_output=True, text=True, timeout=60, cwd=ROOT,
            env={**os.environ, "TALLYSTICK_HOME": str(tmp_path / "home")},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert re.fullmatch(r"token [0-9]{16}\n", done.stdout)
        view = gateway.cli(tmp_path / "home", "lease", "list", "--json")
    assert view.stdout == '{"ok": true, "leases": [], "offered": []}\n'
