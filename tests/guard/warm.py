"""Calls of `tallystick` without its start: a process that has loaded everything is forked for each call.

Four fifths of what a hook costs is Python loading the client, and these tests call hooks some hundred times. What runs
in the fork is the program itself, with the caller's folder, variables and open files; git calls it as it calls a hook.
That the installed command starts by itself is tested where `install` is, and a call that is to be killed is started.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_CLIENT = Path(__file__).with_name("warm_client.py")
_place: list[str] = []  # the socket, while the process runs


def command(*arguments: str) -> list[str]:
    """Return the command line of a call."""
    if not _place:
        return [sys.executable, "-P", "-m", "gateway", *arguments]
    return [sys.executable, "-I", "-S", str(_CLIENT), _place[0], *arguments]


def make_warm(hook: Path) -> None:
    """Let a hook of ours call the process instead of starting one."""
    head = hook.read_text().rpartition("exec ")[0]
    hook.write_text(f'{head}exec {shlex.join(command("guard", "git", "run", hook.name))} "$@"\n')


@contextmanager
def served() -> Iterator[None]:
    """Run the process."""
    folder = tempfile.mkdtemp(prefix="warm-")
    path = f"{folder}/line"
    process = subprocess.Popen([sys.executable, "-m", "tests.guard.warm", path], cwd=ROOT, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        _place.append(path)
        yield
    finally:
        _place.clear()
        process.kill()
        process.wait()
        shutil.rmtree(folder)


def _serve(path: str) -> None:
    import gateway.client.commands
    import gateway.guard.git_commands
    import gateway.guard.hook
    import gateway.guard.hook_keep  # noqa: F401 (that they are loaded is what this is for)

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(path)
        door.listen(64)
        print("ready", flush=True)
        while True:
            line, _ = door.accept()
            if os.fork() == 0:
                door.close()
                _answer(line)
            line.close()


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
    from gateway.__main__ import main

    _, files, _, _ = socket.recv_fds(line, 1, 3)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    content = b"".join(iter(lambda: line.recv(65536), b""))
    folder, count, *rest = content.split(b"\0")
    os.environb.clear()
    os.environb.update(row.partition(b"=")[::2] for row in rest[int(count) :])
    os.chdir(folder)
    arguments: Sequence[str] = [os.fsdecode(word) for word in rest[: int(count)]]
    return main(arguments)


if __name__ == "__main__":
    _serve(sys.argv[1])
