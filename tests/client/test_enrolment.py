"""`tallystick agent`: a profile that is no operator's is told which one to use, and codes are the client's."""

import json
from pathlib import Path

import pytest

from gateway.enrolment import main
from tests.system.process import Gateway

pytestmark = pytest.mark.system
DID = "did:key:z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH"


def test_codes_words_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    operator, agent = tmp_path / "data" / "operator", tmp_path / "agent"
    with Gateway(tmp_path / "data", "--metrics-port", "0") as gateway:
        gateway.join(agent)

        def run(*arguments: str, home: Path = operator) -> tuple[int, str, str]:
            code = main([*arguments, "--home", str(home)])
            return code, *capsys.readouterr()

        assert run("list") == (0, "No key was ever enrolled.\n", "")
        assert json.loads(run("list", "--json")[1]) == {"ok": True, "agents": []}
        code, _, words = run("add", DID, home=agent)
        assert (code in (1, 77), "operator's profile: --home DATA/operator" in words) == (True, True), words
        code, _, words = run("remove", DID)
        assert (code, "never enrolled, or removed already" in words) == (1, True), words
        assert f"tallystick agent list --home {operator}" in words
        added = json.loads(run("add", DID, "--json")[1])
        assert (added["ok"], added["did"]) == (True, DID)
        assert run("add", "not-a-key")[0] == 2
        failed = json.loads(run("add", DID, "--name", "no label", "--json")[1])
        assert (failed["ok"], failed["error"], failed["exitCode"]) == (False, "wrong_usage", 2)
    assert run("list")[0] == 69
