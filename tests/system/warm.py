"""Calls of `tallystick` and `tallystick-verify` without their start: a process that has loaded all is forked for each.

Four fifths of what a call costs is Python loading the client, and tests call some hundred times. What runs in the fork
is the program itself, with the caller's folder, variables and open files; git calls it as it calls a hook. That the
installed commands start by themselves is tested where `install` is and in the README's own commands; a call that is to
be killed is started; and with TALLYSTICK_FULL every call is.
"""

from __future__ import annotations

import os
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pathlib import Path

from tests.scale import IS_FULL

ROOT = Path(__file__).resolve().parents[2]
_CLIENT = Path(__file__).with_name("warm_client.py")
# Commands load what they need when they are asked for; a fork should find it loaded.
_LOADED = (
    "gateway.client.commands", "gateway.guard.git_commands", "gateway.guard.hook", "gateway.guard.hook_keep",
    "gateway.ledger_commands", "verifier.__main__",
)  # fmt: skip


def command(*arguments: str, module: str = "gateway") -> list[str]:
    """Return the command line of a call."""
    if IS_FULL:
        return [sys.executable, "-P", "-m", module, *arguments]
    return [sys.executable, "-I", "-S", str(_CLIENT), _place(), module, *arguments]


def make_warm(hook: Path) -> None:
    """Let a hook of ours call the process instead of starting one."""
    head = hook.read_text().rpartition("exec ")[0]
    hook.write_text(f'{head}exec {shlex.join(command("guard", "git", "run", hook.name))} "$@"\n')


@cache
def _place() -> str:
    """Start the process, which ends with this one; return its socket."""
    path = f"{tempfile.mkdtemp(prefix='warm-')}/line"
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.system.warm", path], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    _kept.append(process)
    return path


_kept: list[subprocess.Popen[bytes]] = []  # whose end of the pipe is what keeps it alive


def _serve(path: str) -> None:
    for name in _LOADED:
        import_module(name)
    signal.signal(signal.SIGCHLD, _bury)
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(path)
        door.listen(64)
        print("ready", flush=True)
        while sys.stdin not in select.select([door, sys.stdin], [], [])[0]:
            line, _ = door.accept()
            if os.fork() == 0:
                door.close()
                _answer(line)
            line.close()
    os.unlink(path)
    os.rmdir(os.path.dirname(path))


def _bury(*_: object) -> None:
    """Take leave of calls that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _answer(line: socket.socket) -> None:
    """One call, in a process of its own."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    code = 70
    try:
        code = _call(line)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        for file in (sys.stdout, sys.stderr):
            file.flush()
        line.sendall(str(code).encode())
        os._exit(0)


def _call(line: socket.socket) -> int:
    _, files, _, _ = socket.recv_fds(line, 1, 3)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    content = b"".join(iter(lambda: line.recv(65536), b""))
    folder, count, *rest = content.split(b"\0")
    os.environb.clear()
    os.environb.update(row.partition(b"=")[::2] for row in rest[int(count) :])
    os.chdir(folder)
    module, *arguments = [os.fsdecode(word) for word in rest[: int(count)]]
    main: object = import_module(f"{module}.__main__").main
    assert callable(main)
    return int(main(_words(arguments)))


def _words(arguments: Sequence[str]) -> list[str]:
    """Return the arguments, which stand in `sys.argv` too, for who asks there for the program's name."""
    sys.argv[1:] = arguments
    return list(arguments)


if __name__ == "__main__":
    _serve(sys.argv[1])
