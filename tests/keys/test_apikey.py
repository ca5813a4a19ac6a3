"""API keys: made at random, checked offline, named by their digest."""

from __future__ import annotations

import re
from hashlib import sha256

import pytest

from keys.apikey import TOKEN_CHARACTERS_MAX, Kind, new_token, open_token
from verifier.wire import Malformed

# The CRC-32 (IEEE 802.3, as of zlib and gzip) of all but the last six characters is 0x8ae3325f.
FIXED = "tsk_live_0123456789ABCDEFGHIJabcdefghij2Xh3Fv"


@pytest.mark.parametrize("kind", ["live", "trial"])
def test_a_new_key_has_the_form_that_scanners_look_for_and_opens(kind: Kind) -> None:
    token = new_token(kind)
    assert re.fullmatch(rf"tsk_{kind}_[0-9A-Za-z]{{36}}", token)
    assert len(token) <= TOKEN_CHARACTERS_MAX
    assert open_token(token) == (kind, sha256(token.encode()).hexdigest())
    assert new_token(kind) != token


def test_the_check_characters_are_the_crc_32_in_base_62() -> None:
    assert open_token(FIXED) == ("live", sha256(FIXED.encode()).hexdigest())


def test_every_single_changed_character_is_noticed_and_nothing_of_the_key_is_told() -> None:
    token = new_token("live")
    for at in range(len("tsk_live_"), len(token)):
        changed = token[:at] + ("0" if token[at] != "0" else "1") + token[at + 1 :]
        with pytest.raises(Malformed) as refused:
            open_token(changed)
        assert changed[9:20] not in str(refused.value)


@pytest.mark.parametrize(
    "text", ["", "tsk_live_", "tsk_test_" + "0" * 36, new_token("live") + "\n", new_token("trial")[:-1], "tsk_live_é"]
)
def test_what_has_another_form_is_refused(text: str) -> None:
    with pytest.raises(Malformed, match="API key"):
        open_token(text)
