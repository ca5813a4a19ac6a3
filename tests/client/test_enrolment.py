"""`tallystick agent`: a profile that is no operator's is told which one to use, and codes are the client's."""

import asyncio
import json
from pathlib import Path

import pytest

from gateway.client.errors import AnswerRefused, RequestRejected, Unreachable
from gateway.enrolment import _forgotten_unless_added, _make_kept, main
from tests.system.process import Gateway
from verifier.wire import Malformed

DID = "did:key:z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH"


DOUBT = RequestRejected(409, "x", "y")
DOUBT.is_unknown = True


@pytest.mark.parametrize(
    ("error", "is_kept"),
    [
        (RequestRejected(403, "agent_unknown", "no"), False),
        (Unreachable("nobody listens", is_refused=True), False),
        (Malformed("no label"), False),
        (Unreachable("no answer"), True),
        (AnswerRefused("it proves nothing"), True),
        (DOUBT, True),
        (asyncio.CancelledError(), True),
    ],
)
def test_the_key_of_an_agent_that_the_gateway_did_not_take_is_removed_and_in_doubt_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], error: BaseException, is_kept: bool
) -> None:
    did = _make_kept(tmp_path)
    with pytest.raises(type(error)), _forgotten_unless_added(tmp_path, did, tmp_path / "operator"):
        raise error
    assert len(list(tmp_path.iterdir())) == (2 if is_kept else 0)
    told = capsys.readouterr().err
    for words in (did, f"--home {tmp_path}/operator", f"remove {tmp_path}/{did}.key"):
        assert (words in told) is is_kept


def test_without_a_profile_no_key_is_made(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    arguments = ("add", "--custodial", "robot", "--data", str(tmp_path), "--home", str(tmp_path / "none"))
    assert (main(arguments), list(tmp_path.glob("custody/*"))) == (78, [])


@pytest.mark.system
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
