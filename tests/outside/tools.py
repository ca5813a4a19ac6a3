"""Where the outside tools are, and how they are run."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
GO_SOURCES = Path("/usr/share/gocode")  # where Debian's golang-golang-x-mod-dev puts x/mod


def need(tool: str | None, name: str) -> str:
    """Return the tool's path; `make outside` sets TALLYSTICK_OUTSIDE=required and then nothing is skipped."""
    if tool:
        return tool
    if os.environ.get("TALLYSTICK_OUTSIDE") == "required":
        pytest.fail(f"{name} is missing although `make outside` should have installed it")
    pytest.skip(f"{name} is not installed; run `make outside`")


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env={**os.environ, **environment}, text=True, capture_output=True, timeout=240, check=False
    )


def peer(name: str) -> str:
    """Return a command of the peers' environment, which `make outside` puts before all others."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return need(shutil.which(name, path=path), name)


def peers_python() -> str:
    """Return the Python that has the peers."""
    return str(Path(peer("proofbundle")).with_name("python"))


def build_go(source: str, folder: Path) -> str:
    """Build one of the Go programs beside this file; the path of the program."""
    go = need(shutil.which("go") if (GO_SOURCES / "src/golang.org/x/mod").is_dir() else None, "Go with x/mod")
    program = str(folder / source.removesuffix(".go"))
    environment = {"GO111MODULE": "off", "GOPATH": str(GO_SOURCES), "GOCACHE": str(folder / "go-cache")}
    built = run(go, "build", "-o", program, str(HERE / source), **environment)
    assert built.returncode == 0, built.stderr
    return program
