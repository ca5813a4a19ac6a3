"""What the core is handed: never raises, keeps what it parsed by its digest, and changes no answer by that."""

import logging
from typing import Any

import cedarpy
import pytest

import gateway.rules.engine as module
from gateway.core.outcome import Ruling
from gateway.core.records import RuleSet
from gateway.rules.engine import Engine, open_engine
from gateway.rules.evaluate import Rules
from tests.rules.questions import ALL, policy, question

FORBID = policy("forbid", name="none")


def rule_set(text: str, version: int = 1) -> RuleSet:
    return RuleSet(version, Rules(text).digest, text, "enforce", "cedar/x", 9)


class Panic(BaseException):
    """What a panic inside the engine looks like: none of Exception."""


def test_a_ruling_is_what_the_set_says_and_by_whom() -> None:
    engine = Engine("cedar/x")
    assert engine(rule_set(ALL), question()) == Ruling("allow", ("all",), (), "cedar/x")
    assert engine(rule_set(ALL + FORBID), question()) == Ruling("deny", ("none",), (), "cedar/x")
    assert engine(rule_set(FORBID), question()) == Ruling("deny", ("none",), (), "cedar/x")
    assert engine.count(ALL + FORBID) == 2


@pytest.mark.parametrize("text", ["permit", ALL + ALL, policy("permit", "context.trvst > 3")])
def test_what_is_no_rule_set_has_no_count(text: str) -> None:
    with pytest.raises(ValueError, match="line 1"):
        Engine("cedar/x").count(text)


@pytest.mark.parametrize("error", [ValueError("x"), Panic("x"), MemoryError(), RecursionError(), SystemError()])
def test_an_engine_that_fails_says_error_and_the_next_question_is_answered(
    error: BaseException, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(*_: Any) -> Any:
        raise error

    engine = Engine("cedar/x")
    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
        patch.setattr(cedarpy, "is_authorized", failing)
        assert engine(rule_set(ALL), question()) == Ruling("error", (), (), "none")
    assert engine.failed_count == 1
    assert type(error).__name__ in caplog.text
    assert engine(rule_set(ALL), question()).decision == "allow", "and nothing of it was kept"


def test_who_stops_the_gateway_is_not_stopped_by_the_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopping(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(cedarpy, "is_authorized", stopping)
    with pytest.raises(KeyboardInterrupt):
        Engine("cedar/x")(rule_set(ALL), question())


@pytest.mark.parametrize(
    "text", ["permit", "", "(" * 9_000, '@id("a") permit(principal == ?principal, action, resource);']
)
def test_a_text_that_is_no_rule_set_is_an_error(text: str) -> None:
    broken = rule_set(ALL)._replace(text=text, digest="f" * 64)
    assert Engine("cedar/x")(broken, question()).decision == "error"


def test_a_digest_of_another_text_is_an_error() -> None:
    assert Engine("cedar/x")(rule_set(ALL)._replace(text=FORBID), question()).decision == "error"


def test_sets_are_parsed_once_and_the_oldest_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []

    def parse(text: str) -> Rules:
        parsed.append(text)
        return Rules(text)

    monkeypatch.setattr(module, "Rules", parse)
    engine = Engine("cedar/x")
    sets = [rule_set(policy("permit", name=f"p{n}")) for n in range(module.SETS_MAX + 1)]
    for one in (*sets[:-1], *sets[:-1], sets[0], sets[-1], sets[0]):
        engine(one, question())
    assert parsed == [one.text for one in sets]
    engine(sets[1], question())
    assert parsed[-1] == sets[1].text


def test_what_is_installed_here_is_opened() -> None:
    engine = open_engine()
    assert engine is not None
    assert engine.name.startswith("cedar/4.")


def test_without_the_extra_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.rules.evaluate.find_spec", lambda _: None)
    assert open_engine() is None
