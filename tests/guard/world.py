"""Real git, real hooks, a real gateway: a repository whose commits are made as one agent."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.client.agent import Agent
from gateway.guard.git import Git
from gateway.guard.hooks import install_hooks
from tests.system import warm
from tests.system.process import Gateway
from verifier.wire import JsonObject


@dataclass
class Tree:
    """A work tree (or a bare repository) and the profile of the agent that works there."""

    path: Path
    home: Path
    also: dict[str, str] = field(default_factory=dict)

    @property
    def env(self) -> dict[str, str]:
        outer = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "TALLYSTICK_"))}
        return {
            **outer, "HOME": str(self.home.parent), "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_AUTHOR_NAME": "A", "GIT_AUTHOR_EMAIL": "a@example.com", "GIT_COMMITTER_NAME": "A",
            "GIT_COMMITTER_EMAIL": "a@example.com", "GIT_EDITOR": "true",
            "TALLYSTICK_HOME": str(self.home), **self.also,
        }  # fmt: skip

    def try_git(self, *arguments: str | bytes) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            ["git", "-c", "protocol.file.allow=always", *arguments], cwd=self.path, env=self.env, capture_output=True,
            timeout=120, check=False,
        )  # fmt: skip

    def git(self, *arguments: str | bytes) -> str:
        done = self.try_git(*arguments)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout.decode("utf-8", "surrogateescape").strip()

    def refused(self, *arguments: str | bytes) -> str:
        """Run git, which must fail; return what it said."""
        done = self.try_git(*arguments)
        assert done.returncode != 0, (arguments, done.stdout, done.stderr)
        return (done.stdout + done.stderr).decode("utf-8", "backslashreplace")

    def guard(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.tallystick("guard", "git", *arguments)

    def tallystick(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            warm.command(*arguments), cwd=self.path, env=self.env, text=True,
            capture_output=True, timeout=120, check=False,
        )  # fmt: skip

    def install(self, *arguments: str) -> None:
        done = self.guard("install", *arguments)
        assert done.returncode == 0, (done.stdout, done.stderr)

    def set_up(self, **settings: str) -> None:
        """What `install` does, in this process."""
        for key, value in settings.items():
            self.git("config", f"tallystick.{key}", value)
        for hook in install_hooks(Git(self.path)):
            warm.make_warm(hook)

    def write(self, name: str | bytes, text: str = "x\n") -> None:
        path = os.path.join(os.fsencode(self.path), os.fsencode(name))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def add(self, name: str | bytes, text: str = "x\n") -> None:
        self.write(name, text)
        self.git("--literal-pathspecs", "add", "--", name)

    def commit(self, *options: str) -> str:
        """Commit what is staged, which must be let pass; return the message."""
        self.git("commit", "-q", "-m", "a change", *options)
        return self.git("log", "-1", "--format=%B")

    def is_at(self, head: str) -> bool:
        return self.git("rev-parse", "HEAD") == head

    # -- leases --------------------------------------------------------------------------------------------------------

    def hold(self, *resources: str, mode: str = "write") -> JsonObject:
        """Take a lease as this agent; return the entry."""

        async def take() -> JsonObject:
            async with Agent.open(self.home) as agent:
                return (await agent.acquire(resources, mode=mode)).receipt.leaf.value

        return asyncio.run(take())

    def let_go(self, *resources: str) -> None:
        async def release() -> None:
            async with Agent.open(self.home) as agent:
                await agent.release(resources)

        asyncio.run(release())

    def leases(self) -> list[JsonObject]:
        async def listed() -> list[JsonObject]:
            async with Agent.open(self.home) as agent:
                return await agent.leases()

        return asyncio.run(listed())


@dataclass
class World:
    """A gateway that runs, and the folder of one scene."""

    gateway: Gateway
    folder: Path
    name: str

    def home(self, who: str) -> Path:
        """The profile of an agent, made once for all scenes of a gateway."""
        home = self.gateway.data.parent / who / "profile"
        if not home.exists():
            arguments = ("join", self.gateway.url, "--root", self.gateway.root_vkey(), "--home", str(home))
            subprocess.run(warm.command(*arguments), capture_output=True, timeout=120, check=True)
        return home

    def tree(self, who: str = "alice", folder: str = "repo") -> Tree:
        """A new repository without a guard, in which `who` works."""
        path = self.folder / folder
        path.mkdir()
        tree = Tree(path, self.home(who))
        tree.git("init", "-q", "-b", "main")
        return tree

    def guarded(self, who: str = "alice", **settings: str) -> Tree:
        """A new repository with the guard in it, and a first commit from before."""
        tree = self.tree(who)
        tree.add("a.txt", "one\n")
        tree.add("b/c.txt", "two\n")
        tree.commit()
        tree.set_up(repository=self.name, since=tree.git("rev-parse", "HEAD"), **settings)
        return tree

    def other(self, tree: Tree, who: str) -> Tree:
        """Another agent in another worktree of the same repository."""
        path = self.folder / who
        tree.git("worktree", "add", "-q", "-b", who, str(path))
        return Tree(path, self.home(who))

    def bare(self) -> Tree:
        """A bare repository with the guard, looked after by a profile of its own."""
        path = self.folder / "bare.git"
        path.mkdir()
        tree = Tree(path, self.home("server"))
        tree.git("init", "-q", "--bare", "-b", "main")
        tree.also["TALLYSTICK_HOME"] = "/nowhere"
        tree.install("--repository", self.name, "--home", str(tree.home))
        return tree

    def file(self, path: str) -> str:
        return f"repo:{self.name}/{path}"

    def leaf(self, seq: str) -> dict[str, Any]:
        """Return what an entry of the ledger says."""
        with urllib.request.urlopen(f"{self.gateway.url}/api/v1/acp/ledger/receipts/{seq}", timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
        leaf: dict[str, Any] = json.loads(base64.b64decode(found.get("receipt", found)["payload"]))
        return leaf

    def covering(self, message: str) -> list[dict[str, Any]]:
        """Return the entries that a commit's message names."""
        lines = [line for line in message.splitlines() if line.startswith("Tallystick-Receipt: ")]
        return [self.leaf(seq) for line in lines for seq in line.split(" ")[2:]]
