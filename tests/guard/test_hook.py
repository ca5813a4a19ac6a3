"""The hook of coding agents, as its hosts call it: real processes, a real repository, a real gateway."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gateway.client.words import texts
from gateway.guard.hook_hosts import HOSTS
from tests.guard.agent import Agent, Answer, finish
from tests.guard.world import Tree, World

pytestmark = pytest.mark.system


@pytest.fixture
def tree(world: World) -> Tree:
    tree = world.tree(f"alice-{world.name}")  # a profile of its own: what a session holds stays in its folder
    tree.git("config", "tallystick.repository", world.name)
    tree.add("src/a.py")
    tree.add("src/b.py")
    tree.commit()
    return tree


@pytest.fixture
def agent(tree: Tree) -> Agent:
    return Agent(tree)


@pytest.fixture
def rival(world: World, tree: Tree) -> Agent:
    """Another agent in another worktree, with a key of its own."""
    return Agent(world.other(tree, f"bob-{world.name}"), session="session-2")


def is_passed(answer: Answer) -> bool:
    assert answer.err == "", answer
    return (answer.code, answer.decision) == (0, "pass")


def denied(answer: Answer) -> str:
    assert (answer.code, answer.decision) == (0, "deny"), answer
    assert "Traceback" not in answer.err
    return answer.reason


def names(tree: Tree) -> list[str]:
    return sorted(name for lease in tree.leases() for name in texts(lease["resources"]))


# -- leases ------------------------------------------------------------------------------------------------------------


def test_a_lease_is_taken_on_first_touch_and_the_other_agent_is_told_who_has_it(
    world: World, agent: Agent, rival: Agent
) -> None:
    """Scenarios 14 and 28: the same path in another worktree is the same resource."""
    assert is_passed(agent.edit("src/a.py"))
    assert names(agent.tree) == [world.file("src/a.py")]
    reason = denied(rival.edit(str(rival.tree.path / "src/a.py")))
    lease = agent.tree.leases()[0]
    assert world.file("src/a.py") in reason and str(lease["holder"]) in reason and " until 20" in reason
    assert "tallystick lease acquire" in reason
    assert is_passed(rival.edit("src/b.py"))
    assert is_passed(agent.end())
    assert names(agent.tree) == []
    assert is_passed(rival.edit("src/a.py"))


def test_reading_needs_nothing(agent: Agent, tmp_path: Path) -> None:
    """A tool that only reads is answered without a profile, a gateway or a lease."""
    agent.tree.also["TALLYSTICK_HOME"] = str(tmp_path / "none")
    for tool in ("Read", "Grep", "WebFetch", "TodoWrite", "mcp__search__query"):
        assert agent.call(tool, path="src/a.py").out.strip() == "{}"
    assert agent.run("cat src/a.py | head").out.strip() == "{}"


def test_a_second_call_asks_nobody(agent: Agent, tree: Tree) -> None:
    """Under a lease that was taken a moment ago no request is made: the gateway's address may be gone by then."""
    assert is_passed(agent.edit("src/a.py"))
    address = tree.home / "gateway.json"
    was = address.read_bytes()
    address.write_bytes(was.replace(b"127.0.0.1", b"127.0.0.2"))
    try:
        assert is_passed(agent.edit("src/a.py"))
    finally:
        address.write_bytes(was)


def test_a_new_file_and_both_names_of_a_move_are_leased(world: World, agent: Agent, rival: Agent) -> None:
    """Scenario 30: a lease on a path that is not there yet; a rename needs both names."""
    assert is_passed(agent.call("Write", file_path="new/deep/x.py", content=""))
    assert denied(rival.run("mkdir -p new && mv src/b.py new/deep/x.py"))
    assert is_passed(agent.call("NotebookEdit", notebook_path="n.ipynb", new_source=""))
    assert is_passed(agent.run("git mv src/a.py src/c.py"))
    expected = ["n.ipynb", "new/deep/x.py", "src/a.py", "src/c.py"]
    assert names(agent.tree) == [world.file(path) for path in expected]


def test_two_sessions_of_one_key_are_kept_apart_on_this_machine(agent: Agent, tree: Tree) -> None:
    """To the ledger both are one holder, and the second would only extend the first one's lease (scenario 20)."""
    assert is_passed(agent.edit("src/a.py"))
    second = Agent(tree, session="session-3")
    assert "another session with this same key" in denied(second.edit("src/a.py"))
    assert "another session with this same key" in denied(second.run("rm -rf src"))
    assert is_passed(agent.end("Stop"))
    assert is_passed(second.edit("src/a.py"))


def test_check_only_takes_nothing_and_gives_nothing_back(world: World, agent: Agent, tree: Tree) -> None:
    checking = Agent(tree, options=("--leases", "check"))
    assert "no lease of this key" in denied(checking.edit("src/a.py"))
    assert names(tree) == []
    tree.hold(world.file("src/**"))
    assert is_passed(checking.edit("src/a.py"))
    assert is_passed(checking.end())
    assert names(tree) == [world.file("src/**")]
    tree.let_go(world.file("src/**"))


def test_what_was_lost_stops_the_call_once(agent: Agent, tree: Tree) -> None:
    """Scenario L19: trust that ended does not come back by itself; the agent reads again."""
    agent.options = ("--ttl", "10s")
    assert is_passed(agent.edit("src/a.py"))
    tree.let_go(*names(tree))
    state = _state(tree)
    row = state["leases"][0]
    state["leases"] = [[*row[:4], 0, *row[5:]]]  # a renewal is due
    _store(tree, state)
    assert "was lost (lease_released" in denied(agent.edit("src/a.py"))
    assert is_passed(agent.edit("src/a.py"))


def test_what_a_long_call_or_pause_has_lost_is_told_to_the_first_call_that_needs_it(
    world: World, agent: Agent, tree: Tree
) -> None:
    """Scenario L19: half an hour later the lease is long over. To take it again in silence would be a lost update."""
    for path in ("src/a.py", "src/b.py"):
        assert is_passed(agent.edit(path))
    tree.let_go(world.file("src/a.py"))
    _age(tree, world.file("src/a.py"), is_over=True)
    assert is_passed(agent.edit("src/b.py")), "which asks nobody"
    assert "was lost (lease_released" in denied(agent.edit("src/a.py"))
    assert is_passed(agent.edit("src/a.py"))
    tree.let_go(world.file("src/b.py"))
    _age(tree, world.file("src/b.py"), is_over=False)
    assert is_passed(agent.edit("src/a.py")), "which finds the other one gone, and does not need it"
    assert "was lost (lease_released" in denied(agent.edit("src/b.py"))


def test_what_this_key_had_before_is_extended_and_not_given_back(world: World, agent: Agent, tree: Tree) -> None:
    """Somebody else with this key took it for work of his own, and has not ended."""
    tree.hold(world.file("src/a.py"))
    assert is_passed(agent.edit("src/a.py"))
    assert is_passed(agent.edit("src/b.py"))
    assert names(tree) == [world.file("src/a.py"), world.file("src/b.py")]
    assert is_passed(agent.end())
    assert names(tree) == [world.file("src/a.py")]
    tree.let_go(world.file("src/a.py"))


def test_a_call_that_may_take_long_begins_with_leases_that_last(world: World, agent: Agent, tree: Tree) -> None:
    """Between two calls nothing renews; so half an hour is asked for before it begins."""
    assert is_passed(agent.edit("src/a.py"))
    before_ms = int(str(tree.leases()[0]["expiresAtMs"]))
    long: Any = {"command": "cat src/a.py", "timeout": 1_800_000}
    assert agent.call("Bash", **long).out.strip() == "{}"
    after_ms = int(str(tree.leases()[0]["expiresAtMs"]))
    assert after_ms - before_ms >= 1_800_000 - 300_000
    address = tree.home / "gateway.json"
    address.write_bytes(address.read_bytes().replace(b"127.0.0.1", b"127.0.0.2"))
    assert agent.call("Bash", **long).out.strip() == "{}", "it lasts, so nobody is asked"
    _age(tree, world.file("src/a.py"), is_over=False)
    longer = {**long, "timeout": 3_600_000}
    assert agent.call("Bash", **longer).out.strip() == "{}", "nor does it need what can't be had"


def test_a_state_of_another_boot_or_a_broken_one_gives_no_trust(agent: Agent, tree: Tree, rival: Agent) -> None:
    """Who lost the instant of the first attempt renews before it acts: the ledger is asked again."""
    assert is_passed(agent.edit("src/a.py"))
    lease = tree.leases()[0]
    kinds: list[object] = [{**_state(tree), "boot": "another"}, [], {"version": 1}, None]
    for broken in kinds:
        tree.let_go(*texts(lease["resources"]))
        assert is_passed(rival.edit("src/a.py"))
        _store(tree, broken)
        assert "is held by" in denied(agent.edit("src/a.py"))
        rival.end()
        assert is_passed(agent.edit("src/a.py"))
        lease = tree.leases()[0]


def _age(tree: Tree, name: str, *, is_over: bool) -> None:
    """Let a lease's renewal be due, or the lease be over, by this machine's clock."""
    state = _state(tree)
    for row in state["leases"]:
        if row[1] == [name]:
            row[4:7] = [0, 0, 0] if is_over else [0, *row[5:7]]
    _store(tree, state)


def _state(tree: Tree) -> dict[str, Any]:
    (path,) = (tree.home / "hook").glob("*.json")
    value: dict[str, Any] = json.loads(path.read_bytes())
    return value


def _store(tree: Tree, value: object) -> None:
    (path,) = (tree.home / "hook").glob("*.json")
    path.write_text("{broken" if value is None else json.dumps(value))


def test_inside_tallystick_run_its_lease_is_borrowed(world: World, tree: Tree) -> None:
    """An agent that works under `tallystick run` uses that lease, and does not give it back at its own end."""
    agent = Agent(tree)
    script = tree.path / "script"
    lines = [f"cat > {script}.in <<'END'\n{agent.said('Edit', {'file_path': 'src/a.py'}).decode()}\nEND\n"]
    hook = "python -P -m gateway guard hook"
    end = agent.said("", {}).decode().replace("PreToolUse", "SessionEnd")
    lines += [f"{hook} < {script}.in > {script}.out\n", f"echo '{end}' | {hook}\n"]
    lines += ["python -P -m gateway lease list > " + f"{script}.leases\n"]
    script.write_text("set -e\n" + "".join(lines))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    tree.also |= {"PATH": path, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    done = tree.tallystick("run", "--resource", world.file("src/a.py"), "--no-wait", "--", "bash", str(script))
    assert done.returncode == 0, (done.stdout, done.stderr)
    out = Answer(0, Path(f"{script}.out").read_text(), "")
    assert is_passed(out) and "lease L" in out.reason
    assert world.file("src/a.py") in Path(f"{script}.leases").read_text()


# -- shell tools -------------------------------------------------------------------------------------------------------


def test_a_command_line_is_held_to_leases_like_an_edit(world: World, agent: Agent, rival: Agent) -> None:
    """Scenario 15: `>`, `sed -i`, `mv` through a shell tool."""
    assert is_passed(rival.edit("src/a.py"))
    for line in (
        "echo x > src/a.py",
        "sed -i s/a/b/ src/a.py",
        "cd src && mv a.py c.py",
        "rm -rf src",
        "git rm -r src",
    ):
        assert "is held by" in denied(agent.run(line)), line
    assert is_passed(agent.run("echo x > src/b.py"))


_UNSEEN = (
    ((), "ask"),
    (("--unseen", "deny"), "deny"),
    (("--unseen", "commit"), "pass"),
    (("--host", "codex"), "deny"),
    (("--host", "codex", "--unseen", "commit"), "pass"),
)


def test_what_can_t_be_seen_is_said(agent: Agent) -> None:
    """A host that can't ask a person is told no."""
    for options, decision in _UNSEEN:
        agent.options = options
        answer = agent.run("python change_everything.py")
        assert (answer.code, answer.decision) == (0, decision), options
        assert "can't see all that this writes: python runs what it is given" in answer.reason


def test_codex_is_never_given_a_member_that_it_does_not_know(agent: Agent) -> None:
    """It takes such an answer for a failed hook, and lets the call run."""
    agent.options = ("--host", "codex", "--say-allow")
    patch = "*** Begin Patch\n*** Update File: src/a.py\n@@\n-x\n+y\n*** Add File: src/n.py\n+z\n*** End Patch\n"
    answer = agent.call("apply_patch", command=patch)
    inner = answer.said["hookSpecificOutput"]
    assert inner.keys() == {"hookEventName", "additionalContext"}
    assert len(names(agent.tree)) == 2


# -- hosts -------------------------------------------------------------------------------------------------------------


def test_gemini_is_answered_in_its_own_form(agent: Agent, rival: Agent) -> None:
    agent.event = rival.event = "BeforeTool"
    first = agent.call("write_file", file_path=str(agent.tree.path / "src/a.py"), content="x")
    assert first.said["decision"] == "allow"
    second = rival.call("run_shell_command", command="echo x > a.py", dir_path="src")
    assert second.said["decision"] == "deny" and "is held by" in second.said["reason"]


def test_copilot_names_no_event_and_gives_arguments_as_text(agent: Agent, rival: Agent) -> None:
    def said(who: Agent, tool: str, arguments: object) -> bytes:
        return json.dumps(
            {
                "sessionId": who.session,
                "timestamp": 1,
                "cwd": str(who.tree.path),
                "toolName": tool,
                "toolArgs": arguments,
            }
        ).encode()

    first = agent.send(said(agent, "edit", {"path": "src/a.py"}))
    assert first.said.keys() == {"additionalContext"}
    second = rival.send(said(rival, "bash", json.dumps({"command": "echo x > src/a.py"})))
    assert second.said["permissionDecision"] == "deny"
    end = {"sessionId": agent.session, "timestamp": 1, "cwd": str(agent.tree.path), "reason": "complete"}
    assert agent.send(json.dumps(end).encode()).out.strip() == "{}"
    assert agent.tree.leases() == []


def test_say_allow_is_said_only_when_it_was_asked_for(agent: Agent) -> None:
    """A lease is no permission: the host's own question stays the person's."""
    assert "permissionDecision" not in agent.edit("src/a.py").said["hookSpecificOutput"]
    agent.options = ("--say-allow", "--unseen", "commit")
    assert agent.edit("src/a.py").decision == "allow"
    assert agent.run("echo x > src/a.py; make").decision == "pass", "what is not seen is never allowed by us"


# -- paths -------------------------------------------------------------------------------------------------------------


def test_links_are_followed_inside_the_tree_and_never_out_of_it(
    world: World, agent: Agent, rival: Agent, tmp_path: Path
) -> None:
    """Scenario 29: an alias is the file it leads to; an escape is refused."""
    tree = agent.tree
    (tree.path / "alias").symlink_to("src")
    (tmp_path / "elsewhere").mkdir()
    (tree.path / "out").symlink_to(tmp_path / "elsewhere")
    assert is_passed(agent.edit("alias/a.py"))
    assert names(tree) == [world.file("src/a.py")]
    assert "leads out of the work tree" in denied(agent.edit("out/x"))
    assert "leads out of the work tree" in denied(agent.run("echo x > out/x"))
    assert is_passed(agent.run("rm out"))
    assert denied(rival.edit("src/../src/./a.py"))


_REFUSED = (
    ("C:\\x\\a.py", "Windows"),
    ("c:/x/a.py", "Windows"),
    ("src\\a.py", "Windows"),
    (".git/hooks/pre-commit", "leads into .git"),
    ("src/../.GIT/config", "leads into .git"),
    ("/tmp/a", "no work tree"),
    ("../outside", "no work tree"),
    ("a\0b", "no file name can have"),
    ("\ud800", "no file name can have"),
    ("a" * 5_000, "4,096"),
    ("", "a path is needed"),
)


def test_paths_that_are_refused_say_why(agent: Agent) -> None:
    """Scenarios 24 and 31."""
    for path, word in _REFUSED:
        assert word in denied(agent.edit(path)), path


def test_a_git_folder_that_is_none_does_not_give_other_names(agent: Agent) -> None:
    """git would look further up and find the repository around it, whose names these are not."""
    assert "leads into .git" in denied(agent.run("mkdir -p src/.git"))
    (agent.tree.path / "src/.git").mkdir()
    assert "no repository's" in denied(agent.edit("src/a.py"))


def test_outside_is_a_setting_of_its_own(agent: Agent, rival: Agent, tmp_path: Path) -> None:
    agent.options = ("--outside", "allow")
    assert is_passed(agent.edit(str(tmp_path / "scratch")))
    agent.options = ("--outside", "ask")
    assert agent.edit(str(tmp_path / "scratch")).decision == "ask"
    assert is_passed(rival.edit("src/a.py"))
    assert "is held by" in denied(agent.run(f"cp x src/a.py && cp x {tmp_path}/scratch")), "who is asked sees all"


def test_a_repository_without_a_name_is_told_how_to_get_one(world: World) -> None:
    tree = world.tree(folder="nameless")
    reason = denied(Agent(tree).edit("a"))
    assert "git config tallystick.repository NAME" in reason


# -- failing -----------------------------------------------------------------------------------------------------------

_BAD = {
    "nothing": b"",
    "no json": b"{",
    "not utf-8": b'{"a": "\xff"}',
    "a list": b"[]",
    "a number": b"1",
    "two objects": b"{}{}",
    "no session": b'{"cwd": "/", "hook_event_name": "PreToolUse", "tool_name": "Edit", "tool_input": {}}',
    "relative cwd": b'{"session_id": "s", "cwd": "x", "hook_event_name": "PreToolUse", "tool_name": "Edit"}',
    "member twice": b'{"session_id": "s", "cwd": "/", "cwd": "/x", "hook_event_name": "PreToolUse"}',
    "twice inside": b'{"session_id": "s", "cwd": "/", "hook_event_name": "PreToolUse", "tool_name": "Edit", '
    b'"tool_input": {"file_path": "/a", "file_path": "/b"}}',
    "no tool": b'{"session_id": "s", "cwd": "/", "hook_event_name": "PreToolUse"}',
    "no event": b'{"session_id": "s", "cwd": "/", "tool_name": "Edit", "tool_input": {"file_path": "/a"}}',
    "input is a list": b'{"session_id": "s", "cwd": "/", "hook_event_name": "PreToolUse", "tool_name": "Edit", '
    b'"tool_input": []}',
    "not a number": b'{"session_id": "s", "cwd": "/", "x": NaN}',
    "a huge number": b'{"session_id": "s", "cwd": "/", "x": 1' + b"0" * 6_000 + b"}",
    "deep": b'{"session_id": "s", "cwd": "/", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "rather deep": b'{"session_id": "s", "cwd": "/", "x": ' + b"[" * 200 + b"]" * 200 + b"}",
    "too large": b'{"session_id": "' + b"x" * 17_000_000 + b'"}',
}


def test_what_can_t_be_read_blocks(agent: Agent) -> None:
    """Exit code 2 and standard error: nobody is known who could be answered in their own form."""
    for name, content in _BAD.items():
        answer = agent.send(content)
        assert (answer.code, answer.out) == (2, ""), name
        assert answer.err.startswith("tallystick: nothing was checked, so nothing is done: the call can't be read")
        assert answer.err.count("\n") == 1, name


def test_a_gateway_that_is_away_is_a_no_and_open_only_when_that_was_set(
    agent: Agent, tree: Tree, tmp_path: Path
) -> None:
    home = tmp_path / "away"
    subprocess.run(["cp", "-r", str(tree.home), str(home)], check=True)
    address = home / "gateway.json"
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        content = json.loads(address.read_bytes())
        content["url"] = f"http://127.0.0.1:{closed.getsockname()[1]}"
        address.write_text(json.dumps(content, separators=(",", ":"), sort_keys=True))
        agent.options = ("--home", str(home))
        assert "nothing was checked, so nothing is done" in denied(agent.edit("src/a.py"))
        agent.options += ("--fail-open",)
        answer = agent.edit("src/a.py")
        assert answer.decision == "pass" and "leases were NOT checked" in answer.said["systemMessage"]


def test_a_missing_profile_is_a_no(agent: Agent, tmp_path: Path) -> None:
    agent.options = ("--home", str(tmp_path / "none"))
    assert "holds no profile" in denied(agent.edit("src/a.py"))
    assert not (tmp_path / "none").exists()


def test_no_answer_in_time_is_a_no(agent: Agent, tree: Tree, tmp_path: Path) -> None:
    """Scenario 39: hosts cut a call off and let the tool run, so the hook is the first to stop waiting."""
    home = tmp_path / "slow"
    subprocess.run(["cp", "-r", str(tree.home), str(home)], check=True)
    address = home / "gateway.json"
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        content = json.loads(address.read_bytes())
        content["url"] = f"http://127.0.0.1:{silent.getsockname()[1]}"
        address.write_text(json.dumps(content, separators=(",", ":"), sort_keys=True))
        agent.options = ("--home", str(home), "--deadline", "3s")
        started_s = time.monotonic()
        call = agent.start()  # a process of its own, which ends where it is late
        assert "nothing is done" in denied(finish(call, agent.said("Edit", {"file_path": "src/a.py"})))
        assert time.monotonic() - started_s < 10


def test_an_input_that_never_ends_is_a_no(agent: Agent) -> None:
    process = agent.start("--deadline", "1s")
    assert process.stdin is not None
    process.stdin.write(b'{"session_id": "s"')
    process.stdin.flush()
    assert process.wait(30) == 2
    assert process.stderr is not None and b"no answer within 1 s" in process.stderr.read()
    process.communicate()


def test_killed_in_the_middle_it_leaves_a_claim_and_no_lock(agent: Agent, tree: Tree) -> None:
    """kill −9 between the claim and the answer: the same session goes on, another one waits for the ttl."""
    process = agent.start("--ttl", "10s")
    assert process.stdin is not None
    process.stdin.write(agent.said("Edit", {"file_path": "src/a.py"}))
    process.stdin.close()
    deadline_s = time.monotonic() + 30
    while not list((tree.home / "hook").glob("*.json")) and time.monotonic() < deadline_s:
        time.sleep(0.001)  # polling a foreign process; nothing asserts on this clock
    process.send_signal(signal.SIGKILL)
    process.wait(30)
    assert process.stdout is not None and process.stderr is not None
    is_answered = process.stdout.read() != b""
    process.stdout.close()
    process.stderr.close()
    if not is_answered:
        assert "another session" in denied(Agent(tree, session="session-4").edit("src/a.py"))
    assert is_passed(agent.edit("src/a.py"))
    assert is_passed(agent.end())


def test_parallel_calls_of_one_session_share_what_it_holds(world: World, agent: Agent, tree: Tree) -> None:
    """Hosts call tools side by side: every file is leased once, and the state holds them all."""
    agent.options = ("--deadline", "50s")
    paths = [f"src/p{number}.py" for number in range(4)] * 2
    started = [(path, agent.begin()) for path in paths]
    for path, process in started:
        assert is_passed(finish(process, agent.said("Edit", {"file_path": path})))
    assert names(tree) == sorted(world.file(path) for path in set(paths))
    assert is_passed(agent.end())
    assert names(tree) == []


def test_two_agents_at_once_never_both_pass(agent: Agent, rival: Agent) -> None:
    """Scenario 1 of the hook: of two that ask for one file at the same time one is refused."""
    for number in range(3):
        path = f"src/race{number}.py"
        pair = [(one, one.begin()) for one in (agent, rival)]
        answers = [finish(process, one.said("Edit", {"file_path": path})) for one, process in pair]
        assert sorted(answer.decision for answer in answers) == ["deny", "pass"]


def test_a_tool_without_a_row_that_looks_like_writing_is_not_let_through_unread(agent: Agent) -> None:
    assert agent.call("mcp__ide__writeBuffer", name="x").decision == "ask"
    assert agent.call("mcp__x__anything", path="a", content="b").decision == "ask"
    assert agent.call("mcp__x__get_information", path="a").decision == "pass"
    agent.options = ("--unseen", "deny")
    assert "--writes mcp__ide__writeBuffer=MEMBER" in denied(agent.call("mcp__ide__writeBuffer", name="x"))
    agent.options += ("--writes", "mcp__ide__writeBuffer=name")
    assert is_passed(agent.call("mcp__ide__writeBuffer", name="src/a.py"))


def test_a_wrong_option_blocks(agent: Agent) -> None:
    """A hook that is set up wrongly must not be one that lets everything through."""
    assert agent.send(b"{}", "--no-such-option").code == 2


# -- setting it up -----------------------------------------------------------------------------------------------------


def test_install_writes_a_hook_that_blocks_when_it_can_t_be_started(tree: Tree) -> None:
    for host in HOSTS:
        asked = ("guard", "hook")
        assert tree.tallystick(*asked, "status", "--host", host).returncode == 1
        assert tree.tallystick(*asked, "install", "--host", host, "--unseen", "deny", "--fail-open").returncode == 0
        assert tree.tallystick(*asked, "install", "--host", host, "--unseen", "commit").returncode == 0
        status = tree.tallystick(*asked, "status", "--host", host)
        assert status.returncode == 0
        assert f"tallystick guard hook --host {host} --unseen commit || exit 2" in status.stdout
        assert "fail-open" not in status.stdout and status.stdout.count("|| exit 2") == 1


def test_install_keeps_what_is_there_and_prints_what_it_can_t_write(tree: Tree) -> None:
    path = tree.path / ".claude/settings.json"
    path.parent.mkdir()
    row = {"matcher": "Bash", "hooks": [{"type": "command", "command": "y"}]}
    theirs = {"model": "x", "hooks": {"PreToolUse": [row]}}
    path.write_text(json.dumps(theirs))
    assert tree.tallystick("guard", "hook", "install").returncode == 0
    merged = json.loads(path.read_text())
    assert merged["model"] == "x" and merged["hooks"]["PreToolUse"][0] == row
    assert len(merged["hooks"]["PreToolUse"]) == 2
    for text in ("// a comment\n{}", '{"hooks": []}', '{"hooks": {"PreToolUse": {}}}'):
        path.write_text(text)
        done = tree.tallystick("guard", "hook", "install")
        assert done.returncode == 1 and path.read_text() == text
        assert "PreToolUse" in json.loads(done.stdout)["hooks"]


def test_install_says_what_is_missing_before_anything_can_be_edited(tree: Tree) -> None:
    assert "denies" not in tree.tallystick("guard", "hook", "install").stdout
    tree.git("config", "--unset", "tallystick.repository")
    done = tree.tallystick("guard", "hook", "install")
    assert (done.returncode, "git config tallystick.repository NAME" in done.stdout) == (0, True)


# -- admissions --------------------------------------------------------------------------------------------------------


def test_with_admit_every_call_has_a_receipt_of_its_own(world: World, agent: Agent, tree: Tree) -> None:
    """The ledger is told the tool, the names and a keyed digest of what exactly; never the input (scenario 60)."""
    agent.options = ("--admit",)
    first, second = agent.edit("src/a.py"), agent.edit("src/a.py")
    assert is_passed(first) and is_passed(second)
    seq = int(first.reason.split("lease L")[1].split(" ")[0])
    entries = [world.leaf(str(seq + number)) for number in (1, 2)]
    for entry in entries:
        assert entry["type"].endswith("admission.allowed/1") and entry["operation"] == "tool.edit"
        assert (entry["resources"], entry["leaseId"]) == ([world.file("src/a.py")], f"L{seq}")
    assert entries[0]["argumentsDigest"] == entries[1]["argumentsDigest"]
    assert is_passed(agent.call("Edit", file_path="src/a.py", old_string="a", new_string="other"))
    assert world.leaf(str(seq + 3))["argumentsDigest"] != entries[0]["argumentsDigest"]


def test_an_admission_that_is_denied_stops_the_call(agent: Agent, tree: Tree) -> None:
    """A stale fence is told from the ledger's own word (scenario 11): the lease went while the session trusted it."""
    agent.options = ("--admit",)
    assert is_passed(agent.edit("src/a.py"))
    tree.let_go(*names(tree))
    assert "was lost (stale_fence" in denied(agent.edit("src/a.py"))
    assert is_passed(agent.edit("src/a.py"))


def test_an_admission_names_every_object_of_a_folder(world: World, agent: Agent, tree: Tree) -> None:
    """What is below is looked up: a rule about one file is asked about that file, whatever the line calls it."""
    agent.options = ("--admit",)
    tree.write("src/deep/c d.py")
    os.symlink("a.py", tree.path / "src/link")
    os.symlink("/etc", tree.path / "src/deep/out")
    seq = int(agent.run("rm -rf src").reason.split("lease L")[1].split(" ")[0])
    below = ["a.py", "b.py", "deep/c%20d.py", "deep/out", "link"]
    entry = world.leaf(str(seq + 1))
    assert entry["resources"] == [world.file("src"), *(world.file(f"src/{name}") for name in below)]
    moved = agent.run("mv src lib")
    assert is_passed(moved)
    last = max(int(part.split(" ")[0]) for part in moved.reason.split("lease L")[1:])
    entries = [world.leaf(str(last + number)) for number in (1, 2)]
    told = sorted(name for entry in entries for name in entry["resources"])
    assert told == sorted(
        world.file(f"{top}{name}") for top in ("src", "lib") for name in ("", *(f"/{b}" for b in below))
    )


def test_many_objects_are_several_admissions_and_too_many_are_none(world: World, agent: Agent, tree: Tree) -> None:
    agent.options = ("--admit",)
    for number in range(70):
        tree.write(f"many/{number:03}")
    seq = int(agent.run("chmod -R a-w many").reason.split("lease L")[1].split(" ")[0])
    sizes = [len(world.leaf(str(seq + number))["resources"]) for number in (1, 2)]
    assert sizes == [64, 7]
    for number in range(70, 300):
        tree.write(f"many/{number:03}")
    assert "more than 256 objects" in denied(agent.run("rm -r many"))


@pytest.mark.parametrize(
    "line",
    [
        "cp -rL src lib", "cp src/*.py lib", "touch src/*.txt", "git checkout -- src", "rsync -a src/ lib",
        "touch " + "d/" * 40 + "x", f"touch {'x' * 250}/{'y' * 250}/{'z' * 250}/{'u' * 250}/{'v' * 250}",
    ],
)  # fmt: skip
def test_what_can_t_be_named_object_by_object_is_not_admitted(agent: Agent, line: str) -> None:
    agent.options = ("--admit", "--unseen", "commit")
    assert "an admission (--admit) names objects" in denied(agent.run(line))
    agent.options = ("--unseen", "commit")
    assert is_passed(agent.run(line))


def test_variables_of_git_lead_to_no_other_repository(world: World, agent: Agent, tree: Tree, tmp_path: Path) -> None:
    other = Tree(tmp_path / "elsewhere", tree.home)
    other.path.mkdir()
    other.git("init", "-q")
    other.git("config", "tallystick.repository", "other")
    tree.also |= {"GIT_DIR": str(other.path / ".git"), "GIT_CONFIG_COUNT": "1"}
    tree.also |= {"GIT_CONFIG_KEY_0": "tallystick.repository", "GIT_CONFIG_VALUE_0": "other"}
    assert is_passed(agent.edit("src/a.py"))
    assert names(tree) == [world.file("src/a.py")]
