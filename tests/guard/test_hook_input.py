"""Whatever a host says, the hook answers: no traceback, and never silence about a tool that writes."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.guard import hook
from gateway.guard.hook_hosts import HOSTS, BadInput, Call, answer, parse_call
from gateway.guard.hook_tools import TOOLS, BadTool, touch_of

_TEXT = st.text(max_size=30) | st.sampled_from(
    ["/", "..", "a/b", "\0", "\ud800", "~", "-", "src/../../x", "C:\\x", "a" * 5_000]
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=8,
)
_MEMBERS = (
    "file_path",
    "path",
    "notebook_path",
    "command",
    "cmd",
    "workdir",
    "dir_path",
    "source",
    "destination",
    "input",
)
_INPUTS = st.dictionaries(st.sampled_from(_MEMBERS), _TEXT | _JSON, max_size=3) | _JSON
_SAID = st.fixed_dictionaries(
    {},
    optional={
        "session_id": st.just("s") | _JSON,
        "cwd": st.just("/repo") | _JSON,
        "hook_event_name": st.sampled_from(["PreToolUse", "BeforeTool", "Stop", "SessionEnd", "PostToolUse"]) | _JSON,
        "tool_name": st.sampled_from(sorted(TOOLS)) | _JSON,
        "tool_input": _INPUTS,
        "toolName": st.sampled_from(sorted(TOOLS)) | _JSON,
        "toolArgs": _INPUTS | _INPUTS.map(json.dumps),
        "sessionId": st.just("s") | _JSON,
        "turn_id": _TEXT,
    },
)
_PATHLESS = {name for name, tool in TOOLS.items() if tool.kind == "files"}


def ask(content: bytes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *options: str) -> Any:
    """Run the hook in this process, without a profile; return its code and outputs."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    code = hook.main(["--home", "/nonexistent", *options])
    out, err = capsys.readouterr()
    return code, out, err


def _is_answered(content: bytes, code: int, out: str, err: str) -> None:
    assert code in (0, 2) and "Traceback" not in err
    if code == 2:
        assert out == "" and err.strip()
        return
    said = json.loads(out)
    assert isinstance(said, dict) and err == ""
    call = parse_call(content, None)
    if call.kind == "tool" and call.tool in _PATHLESS:
        inner = said.get("hookSpecificOutput", said)
        assert (inner.get("permissionDecision") or inner.get("decision")) == "deny", said


@given(st.binary(max_size=300) | _SAID.map(lambda said: json.dumps(said).encode()))
@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_input_is_answered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    """Without a profile nothing can be checked, so what writes files is denied, whatever it is given."""
    _is_answered(content, *ask(content, monkeypatch, capsys))


@given(_SAID.map(lambda said: json.dumps(said).encode()), st.integers(0, 400), st.binary(min_size=1, max_size=3))
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_input_is_answered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], content: bytes, at: int, damage: bytes
) -> None:
    damaged = content[:at] + damage + content[at + len(damage) :]
    _is_answered(damaged, *ask(damaged, monkeypatch, capsys))


def test_an_error_of_our_own_is_a_no(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fails(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(hook, "touch_of", fails)
    said = {"session_id": "s", "cwd": "/", "hook_event_name": "PreToolUse", "tool_name": "Read", "tool_input": {}}
    code, out, _ = ask(json.dumps(said).encode(), monkeypatch, capsys)
    assert code == 0 and "the hook itself failed (MemoryError)" in out and '"deny"' in out
    code, out, _ = ask(json.dumps(said).encode(), monkeypatch, capsys, "--fail-open")
    assert code == 0 and "leases were NOT checked" in json.loads(out)["systemMessage"]
    code, out, _ = ask(json.dumps({**said, "hook_event_name": "Stop"}).encode(), monkeypatch, capsys)
    assert (code, out.strip()) == (0, "{}"), "an agent that stops is not kept from stopping"


@pytest.mark.parametrize("host", HOSTS.values(), ids=HOSTS)
def test_no_host_is_given_what_it_does_not_know(host: Any) -> None:
    for decision in ("deny", "ask", "allow", "pass"):
        text = json.dumps(answer(host, decision, "why"))
        assert "why" in text
        assert host.is_asking or '"ask"' not in text
        assert host.is_allowing or '"allow"' not in text
    assert "deny" in json.dumps(answer(host, "deny", "why"))
    assert host.is_asking or '"deny"' in json.dumps(answer(host, "ask", "why"))


PATCH = "*** Begin Patch\n*** Update File: a\n*** Move to: b\n+*** Add File: c\n"


def call(tool: str, **given: Any) -> Call:
    return Call(HOSTS["claude-code"], "tool", "s", "/repo", tool, given)


@pytest.mark.parametrize(
    ("tool", "given", "writes"),
    [
        ("Write", {"file_path": "a"}, ["/repo/a"]),
        ("Edit", {"file_path": "/x/a", "path": "b"}, ["/x/a", "/repo/b"]),
        ("mcp__files__write_file", {"path": "a"}, ["/repo/a"]),
        ("mcp__files__move_file", {"source": "a", "destination": "b"}, ["/repo/a", "/repo/b"]),
        ("mcp_files_edit_file", {"path": ["a", "b"]}, ["/repo/a", "/repo/b"]),
        ("shell", {"command": ["bash", "-lc", "rm a"], "workdir": "d"}, ["/repo/d/a"]),
        ("exec_command", {"cmd": "rm a"}, ["/repo/a"]),
        ("run_shell_command", {"command": "rm a", "dir_path": "/x"}, ["/x/a"]),
        (
            "apply_patch",
            {"input": PATCH},
            ["/repo/a", "/repo/b"],
        ),
    ],
)
def test_what_tools_write(tool: str, given: dict[str, Any], writes: list[str]) -> None:
    touch = touch_of(call(tool, **given), {})
    assert ([write.path for write in touch.writes], touch.unseen) == (writes, [])


@pytest.mark.parametrize(
    ("tool", "given"),
    [
        ("Write", {}),
        ("Write", {"file_path": ""}),
        ("Write", {"file_path": ["a", 1]}),
        ("Write", {"file_path": None}),
        ("Bash", {}),
        ("Bash", {"command": 1}),
        ("exec_command", {"cmd": "a", "command": "b"}),
        ("run_shell_command", {"command": "a", "dir_path": 1}),
        ("apply_patch", {"input": ["a"]}),
    ],
)
def test_what_a_tool_lacks_is_named(tool: str, given: dict[str, Any]) -> None:
    with pytest.raises(BadTool):
        touch_of(call(tool, **given), {})


@pytest.mark.parametrize("given", [{"command": ["rm", "a"]}, {"command": ["bash", "-x", "rm a"]}])
def test_a_command_in_pieces_can_t_be_seen(given: dict[str, Any]) -> None:
    assert touch_of(call("shell", **given), {}).unseen


@pytest.mark.parametrize(
    ("tool", "is_suspected"),
    [
        ("mcp__x__deleteRow", True),
        ("mcp__x__run", True),
        ("mcp__x__get_output", False),
        ("mcp__x__information", False),
        ("CreateThing", True),
        ("mcp__git__status", True),
        ("mcp__docs__search", False),
        ("mcp__x__compute", False),
    ],
)
def test_a_name_that_sounds_like_writing_is_suspected(tool: str, is_suspected: bool) -> None:
    assert bool(touch_of(call(tool), {}).unseen) is is_suspected


def test_a_session_of_another_kind_of_id_is_refused() -> None:
    for session in ("", "x" * 513, None, 1):
        with pytest.raises(BadInput):
            parse_call(json.dumps({"session_id": session, "cwd": "/"}).encode(), None)


def test_nothing_is_loaded_that_a_quick_answer_does_not_need(tmp_path: Path) -> None:
    """A process is started for each call: reading and known leases load neither the client nor asyncio."""
    import subprocess

    said = {"session_id": "s", "cwd": "/", "hook_event_name": "PreToolUse", "tool_name": "Read", "tool_input": {}}
    code = "import sys; from gateway.guard.hook import main; main([]); print([m for m in sys.modules if m in %r])"
    heavy = ["asyncio", "aiohttp", "gateway.client", "verifier.entries", "nacl", "cryptography", "gateway.actions"]
    done = subprocess.run(
        [sys.executable, "-c", code % heavy], input=json.dumps(said).encode(), capture_output=True, check=True
    )
    assert done.stdout.split() == [b"{}", b"[]"]


def test_a_call_that_asks_loads_nothing_of_a_server() -> None:
    """The client's own parts, and none that decide, store, draw pages or serve; settings are read without them too."""
    import subprocess

    code = (
        "import sys, gateway.guard.settings; assert 'aiohttp' not in sys.modules, 'settings';"
        "import gateway.guard.hook_keep, gateway.guard.git_compare;"
        "heavy = ('gateway.core', 'gateway.ledger', 'gateway.store', 'gateway.web', 'aiohttp.web');"
        "print([name for name in sys.modules if name.startswith(heavy)])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout.strip() == b"[]"
