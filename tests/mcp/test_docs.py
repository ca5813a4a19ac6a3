"""What docs/mcp.md tells people to write into their hosts' files is what the programs take."""

import json
import re
import tomllib
from pathlib import Path

from gateway.mcp.bridge import mcp_parser
from gateway.mcp.protocol import REVISIONS
from gateway.mcp.stdio import CALLS_MAX
from gateway.web.mcp import PATHS

TEXT = (Path(__file__).resolve().parents[2] / "docs/mcp.md").read_text("utf-8")


def servers() -> list[dict[str, object]]:
    """Every server in a block of JSON or TOML."""
    found = [json.loads(block)["mcpServers"] for block in re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL)]
    found += [tomllib.loads(block)["mcp_servers"] for block in re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)]
    return [server["tallystick"] for server in found]


def test_the_commands_are_ours() -> None:
    commands = [server for server in servers() if "command" in server]
    assert len(commands) == 2
    for server in commands:
        name, *options = server["args"] if isinstance(server["args"], list) else []
        assert (server["command"], name) == ("tallystick", "mcp")
        assert mcp_parser()[0].parse_args(options).home == Path("/path/to/profile")


def test_the_addresses_are_ours() -> None:
    urls = [str(server["url"]) for server in servers() if "url" in server]
    assert len(urls) == 2
    assert all("/" + url.split("/", 3)[3] in PATHS for url in urls)


def test_revisions_and_bounds_are_those_of_the_code() -> None:
    assert all(revision in TEXT for revision in REVISIONS)
    assert f"calls at once over stdio | {CALLS_MAX} |" in TEXT
