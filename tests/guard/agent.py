"""A coding agent as the hook knows it: a process is started for each tool call and given one object."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.guard.world import Tree
from tests.system import warm

ROOT = Path(__file__).resolve().parents[2]
PATIENT = ("--deadline", "50s")  # a machine that runs many tests at once is slow; a later option counts


@dataclass(frozen=True)
class Answer:
    """What the hook said: its exit code and its two outputs."""

    code: int
    out: str
    err: str

    @property
    def said(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)
        return found

    @property
    def decision(self) -> str:
        """ "deny", "ask", "allow" in any host's form; "pass" for none."""
        if self.code == 2:
            return "deny"
        said = self.said
        inner = said.get("hookSpecificOutput", said)
        return str(inner.get("permissionDecision") or said.get("decision") or "pass")

    @property
    def reason(self) -> str:
        if self.code == 2:
            return self.err
        said = self.said
        inner = said.get("hookSpecificOutput", said)
        return str(inner.get("permissionDecisionReason") or said.get("reason") or inner.get("additionalContext") or "")


@dataclass
class Agent:
    """An agent that works in a tree, in one session of its host."""

    tree: Tree
    session: str = "session-1"
    options: tuple[str, ...] = ()
    event: str = "PreToolUse"

    def call(self, tool: str, **given: Any) -> Answer:
        return self.send(self.said(tool, given))

    def said(self, tool: str, given: Any) -> bytes:
        return json.dumps(
            {
                "session_id": self.session, "transcript_path": "/t", "cwd": str(self.tree.path), "tool_name": tool,
                "hook_event_name": self.event, "tool_input": given, "permission_mode": "default",
            }
        ).encode()  # fmt: skip

    def edit(self, path: str) -> Answer:
        return self.call("Edit", file_path=path, old_string="a", new_string="b")

    def run(self, line: str) -> Answer:
        return self.call("Bash", command=line, description="x", timeout=1.5)

    def end(self, event: str = "SessionEnd") -> Answer:
        said = {"session_id": self.session, "cwd": str(self.tree.path), "hook_event_name": event, "reason": "other"}
        return self.send(json.dumps(said).encode())

    def send(self, content: bytes, *options: str) -> Answer:
        return finish(self.begin(*options), content)

    def begin(self, *options: str) -> subprocess.Popen[bytes]:
        return self._run(warm.command("guard", "hook", *PATIENT, *self.options, *options))

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        """Start a process of its own, which can be killed."""
        return self._run([sys.executable, "-P", "-m", "gateway", "guard", "hook", *PATIENT, *self.options, *options])

    def _run(self, command: list[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            cwd=self.tree.path,
            env={**self.tree.env, "PYTHONPATH": str(ROOT)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )  # fmt: skip


def finish(process: subprocess.Popen[bytes], content: bytes | None = None) -> Answer:
    """Give a started hook its input and return what it says."""
    out, err = process.communicate(content, timeout=90)
    return Answer(process.returncode, os.fsdecode(out), os.fsdecode(err))
