"""`tallystick rules check | test | starter | schema` at a desk without a gateway, and `load | show` at one.

What is loaded is checked here first, where there is an engine, and by the gateway in any case. What is shown was
loaded: the text is compared with the digest in the entry that put it in force, whose receipt is verified.
"""

from __future__ import annotations

import argparse
import json
import sys
from hashlib import sha256
from pathlib import Path

from gateway.actions import ACTIONS
from gateway.client.agent import Agent
from gateway.client.errors import AnswerRefused
from gateway.client.exits import DONE, UNFIT, shown
from gateway.client.outcome import add_receipt, check_receipt_path, done
from gateway.client.seen import read_bounded
from gateway.client.terminal import OPERATOR_HELP, Handler, command_parser, operating, patient, sub_parser
from gateway.rules.cases import Tried, read_cases, tried
from gateway.rules.check import Checked, check
from gateway.rules.evaluate import INSTALL, Rules, engine_name
from gateway.rules.starter import starter_cases, starter_rules
from verifier.entries import RULES_CHARACTERS_MAX, RULES_TEXT
from verifier.rules import SCHEMA
from verifier.wire import TEXT_BYTES_MAX, JsonObject, Malformed

MODES = ("enforce", "shadow")


def rules_parser() -> tuple[argparse.ArgumentParser, Handler]:
    """Return the parser of `tallystick rules`."""
    parser = command_parser(
        "rules",
        "Who may do what, in Cedar: rules that an operator loads and that decide each admission after the hard ones. "
        "Begin with `tallystick rules starter`; nothing that is not valid can be loaded.",
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="starter|check|test|load|show|schema")
    made = sub_parser(
        verbs, "starter", "Print a rule set to begin with",
        "Write it to a file and change it; `--cases` prints what it should say, for `tallystick rules test`.",
    )  # fmt: skip
    made.add_argument("--cases", action="store_true", help="print its cases instead")
    made.set_defaults(handler=_starter)
    made = sub_parser(
        verbs, "check", "Say whether a file is a rule set",
        "Each fault is told with the policy, the line and, where that can be guessed, what was meant.",
    )  # fmt: skip
    _add_file(made)
    made.set_defaults(handler=_check)
    _add_test(sub_parser(
        verbs, "test", "Try a rule set on cases",
        "A case is one JSON object in a line: what is to be different from an ordinary write under a lease, and what "
        "is expected. For each the answer is told, and which policies it is by.",
    ))  # fmt: skip
    _add_load(verbs)
    made = sub_parser(
        verbs, "show", ACTIONS["rules.show"].summary,
        "The text with its version, digest and mode, compared with the verified entry that loaded it.",
    )  # fmt: skip
    made.set_defaults(handler=_show)
    made = sub_parser(verbs, "schema", "Print what rules may ask for", "The schema that each rule set is checked by.")
    made.set_defaults(handler=_schema)
    return parser, lambda arguments: arguments.handler(arguments)


def _add_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE|-", help="the rule set, Cedar text")


def _add_test(parser: argparse.ArgumentParser) -> None:
    _add_file(parser)
    parser.add_argument("cases", type=Path, metavar="CASES|-", help="the cases, JSON lines")
    parser.set_defaults(handler=_test)


def _add_load(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    row = ACTIONS["rules.load"]
    parser = sub_parser(verbs, "load", row.summary, row.description, OPERATOR_HELP)
    _add_file(parser)
    parser.add_argument(
        "--mode", choices=MODES, required=True,
        help="enforce: it decides; shadow: what it says is written into each entry and denies nothing",
    )  # fmt: skip
    parser.add_argument(
        "--rules-version",
        type=int,
        metavar="N",
        help="the number it gets (default: one more than the set in force has)",
    )
    add_receipt(parser)
    parser.set_defaults(handler=_load)


# -- without a gateway -------------------------------------------------------------------------------------------------


async def _starter(arguments: argparse.Namespace) -> int:
    return _print(arguments, "text", starter_cases() if arguments.cases else starter_rules())


async def _schema(arguments: argparse.Namespace) -> int:
    return _print(arguments, "schema", SCHEMA)


def _print(arguments: argparse.Namespace, name: str, text: str) -> int:
    print(json.dumps({"ok": True, name: text}) if arguments.json else text.removesuffix("\n"))
    return DONE


async def _check(arguments: argparse.Namespace) -> int:
    text = _read(arguments.file)
    checked = _checked(text)
    if checked.faults:
        return _tell_faults(arguments, checked)
    digest = sha256(text.encode()).hexdigest()
    policies: list[JsonObject] = [
        {"id": policy.id, "effect": policy.effect, "line": line,
         **({"obligation": policy.obligation} if policy.obligation else {})}
        for line, policy in checked.policies
    ]  # fmt: skip
    if arguments.json:
        print(json.dumps({"ok": True, "digest": digest, "engine": engine_name(), "policies": policies}))
        return DONE
    for row in policies:
        obliged = f"  obliges to {row['obligation']}" if "obligation" in row else ""
        print(f"{row['effect']:<6}  {row['id']}  (line {row['line']}){obliged}")
    print(f"valid: {_count(len(policies), 'policy', 'policies')}, by {engine_name()}, SHA-256 {digest}")
    return DONE


async def _test(arguments: argparse.Namespace) -> int:
    text = _read(arguments.file)
    checked = _checked(text)
    if checked.faults:
        return _tell_faults(arguments, checked)
    try:
        cases = read_cases(_read(arguments.cases, TEXT_BYTES_MAX))
    except Malformed as error:
        raise Malformed(f"{arguments.cases}: {error}") from error
    found = list(tried(Rules(text), cases))
    wrong_count = sum(not one.is_met for one in found)
    if arguments.json:
        print(json.dumps({"ok": not wrong_count, "cases": [_case_row(one) for one in found]}))
    else:
        for one in found:
            print(shown(_case_line(one)))
        others = f"{wrong_count} of {len(found)} cases came out otherwise"
        print(others if wrong_count else f"{_count(len(found), 'case', 'cases')}, as expected")
    return UNFIT if wrong_count else DONE


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _case_row(one: Tried) -> JsonObject:
    case, verdict = one
    return {
        "case": case.name, "line": case.line, "ok": one.is_met, "expect": case.expect, "decision": verdict.decision,
        "matched": [*verdict.matched], "obligations": [*verdict.obligations], "faults": [*verdict.faults],
    }  # fmt: skip


def _case_line(one: Tried) -> str:
    case, verdict = one
    line = f"{'ok   ' if one.is_met else 'WRONG'}  {case.name:<36}  {verdict.decision:<5}  {_why(one)}"
    return line if one.is_met else f"{line}  (line {case.line} expects {_wanted(one)})"


def _why(one: Tried) -> str:
    """Return by which policies an answer is, and what it obliges to."""
    verdict = one.verdict
    if verdict.decision == "error":
        return "; ".join(verdict.faults) or "it could not be evaluated"
    by = {"allow": "permitted by", "deny": "forbidden by"}[verdict.decision]
    why = f"{by} {', '.join(verdict.matched)}" if verdict.matched else "nothing permits it"
    return f"{why}; obliges to {', '.join(verdict.obligations)}" if verdict.obligations else why


def _wanted(one: Tried) -> str:
    case = one.case
    parts = [case.expect]
    parts += [] if case.matched is None else [f"by {', '.join(case.matched) or 'no policy'}"]
    parts += [] if case.obligations is None else [f"obliging to {', '.join(case.obligations) or 'nothing'}"]
    return " ".join(parts)


# -- at a gateway ------------------------------------------------------------------------------------------------------


async def _load(arguments: argparse.Namespace) -> int:
    check_receipt_path(arguments.receipt)
    text = _read(arguments.file)
    if engine_name() is not None and (checked := check(text)).faults:
        return _tell_faults(arguments, checked)
    with operating():
        async with patient(arguments.home) as operator:
            version = arguments.rules_version or _version(await operator.rules()) + 1
            receipt = await operator.load_rules(text, arguments.mode, version)
    step = (
        "It decides every admission from now on; approvals that name another text count no more."
        if arguments.mode == "enforce"
        else "It denies nothing: every admission tells what it would have said. Load it with --mode enforce to decide."
    )
    return done("rules load", arguments, receipt, step)


def _version(view: JsonObject) -> int:
    """Return the number of the set in force by an unverified view; 0 without one. A wrong one is only refused."""
    rules = view.get("rules")
    version = rules.get("version") if isinstance(rules, dict) else 0
    return version if isinstance(version, int) else 0


async def _show(arguments: argparse.Namespace) -> int:
    async with Agent.open(arguments.home) as agent:
        view = await agent.rules()
        rules = view.get("rules")
        if not isinstance(rules, dict):
            none = "No rules are loaded: the hard ones alone decide."
            print(json.dumps({"ok": True, "rules": None}) if arguments.json else none)
            return DONE
        await _prove(agent, rules)
    if arguments.json:
        print(json.dumps({"ok": True, "rules": rules}))
        return DONE
    print(f"// version {rules['version']}, {rules['mode']}, loaded by entry {rules['seq']} (verified)")
    print(f"// SHA-256 {rules['digest']} of what follows this line")
    print(rules["text"], end="")
    return DONE


async def _prove(agent: Agent, rules: JsonObject) -> None:
    """AnswerRefused unless the entry that the view names put just this text in force."""
    seq, text = rules.get("seq"), rules.get("text")
    if not isinstance(seq, int) or not isinstance(text, str) or not RULES_TEXT.check(text):
        raise AnswerRefused("the gateway shows rules without their entry or their text")
    leaf = (await agent.receipt(seq)).leaf
    told = {"version": leaf.number("rulesVersion"), "mode": leaf.text("rulesMode"), "digest": leaf.text("digest")}
    if leaf.type.split("/")[1] != "rules.loaded" or any(rules.get(name) != value for name, value in told.items()):
        raise AnswerRefused(f"the gateway shows other rules than its entry {seq} put in force")
    if sha256(text.encode()).hexdigest() != told["digest"]:
        raise AnswerRefused(f"the gateway shows another text than the one that entry {seq} names by its digest")


# -- files and faults --------------------------------------------------------------------------------------------------


def _read(path: Path, bytes_max: int = RULES_CHARACTERS_MAX) -> str:
    """Return the text of a file, or of standard input for "-". Malformed."""
    try:
        content = sys.stdin.buffer.read(bytes_max + 1) if path == Path("-") else read_bounded(path, bytes_max)
        return _decoded(content, bytes_max)
    except OSError as error:
        raise Malformed(f"{path} can't be read: {error.strerror}") from error
    except Malformed as error:
        raise Malformed(f"{path}: {error}") from error


def _decoded(content: bytes, bytes_max: int) -> str:
    if len(content) > bytes_max:
        raise Malformed(f"longer than {bytes_max:,} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise Malformed("no UTF-8") from error


def _checked(text: str) -> Checked:
    if engine_name() is None:
        raise Malformed(f"this needs the engine for rules, which is not installed here: {INSTALL}")
    return check(text)


def _tell_faults(arguments: argparse.Namespace, checked: Checked) -> int:
    rows: list[JsonObject] = [{"line": at.line, "policy": at.policy, "text": at.text} for at in checked.faults]
    if arguments.json:
        message = f"the rule set has {_count(len(rows), 'fault', 'faults')}"
        told = {"error": "rules_invalid", "message": message, "faults": rows, "exitCode": UNFIT}
        print(json.dumps({"ok": False, **told}))
        return UNFIT
    for fault in checked.faults:
        print(f"{arguments.file}: {shown(str(fault))}", file=sys.stderr)
    return UNFIT
