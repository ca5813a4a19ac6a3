"""What a person is told whose rule set is not valid: which policy, which line, what is wrong, what was meant."""

import re
from collections.abc import Iterator

import pytest

from gateway.rules.cases import AGENT
from gateway.rules.check import Fault, check
from gateway.rules.starter import starter_rules
from tests.rules.questions import ALL, policy
from verifier.entries import RULES_CHARACTERS_MAX
from verifier.rules import CONTEXT

# Cedar in the second line of a policy, and what is said of it.
SENTENCES = [
    ("context.trvst > 3", "there is no fact `trvst`; did you mean trust? (all of them: tallystick rules schema)"),
    ("context.zebra > 3", "there is no fact `zebra` (all of them: tallystick rules schema)"),
    ("context.Trust > 3", "there is no fact `Trust`; did you mean trust? (all of them: tallystick rules schema)"),
    ('principal.nam == "x"', "principal has no `nam`; did you mean name? (it has name)"),
    ('resource.klass == "x"', "resource has no `klass`; did you mean class? (it has scheme, class, path)"),
    ('principal in Operater::"x"', "there is no Operater::; did you mean Operator?"),
    ('action == Action::"wite"', 'Action::"wite" is none of the modes; did you mean write? '
     "(they are read, append, write, delete)"),
    ("context.trust = 3", "`=` can't stand here: write =="),
    ("context.trust => 3", "`>` can't stand here: write >= or <="),
    ("context.trust > 3 and true", "`and` can't stand here: write &&"),
    ("context.trust > 3 or true", "`or` can't stand here: write ||"),
    ("context.trust > 3.5", "`5` can't stand here: numbers are whole"),
    ("trust > 3", "`trust` means nothing by itself; facts are written context.trust"),
    ("contxt.trust > 3", "`contxt` means nothing by itself; did you mean context?"),
    ("context has trvst", "context never has `trvst`; did you mean trust?"),
    ("context.minuteOfDay < 1440", "context.minuteOfDay is 0 to 1,439, so never 1,440"),
    ("context.approvals >= 5", "context.approvals is 0 to 4, so never 5"),
    ('context.leaseMode == "writ"', 'context.leaseMode is never "writ"; did you mean write? '
     "(it is one of read, append, write, delete, none)"),
    ('context.operation == "Edit file"', 'context.operation is never "Edit file": it is what is to be done, such as '
     "file.write: 1 to 64 of a-z 0-9 . _ -"),
    ('resource.class == "exlusive"', 'resource.class is never "exlusive"; did you mean exclusive? '
     "(it is one of read-safe, exclusive, append-only, irreversible)"),
    ('resource in Resource::"repo:app/"', 'Resource::"repo:app/" is no name: empty segments are refused; remove the '
     "doubled, first or last /"),
    ('resource in Resource::"repo:app/*"', 'Resource::"repo:app/*" is no name: * stands only as the last segment **, '
     "which means the whole sub-tree"),
    ('resource == Resource::"repo:app/**"', 'no admission is for all of Resource::"repo:app/**": write `in` '
     "instead of ==, for each name in it"),
    ('resource in Resource::"repo:app"', '`in` Resource::"repo:app" is that one name alone: write == instead, or '
     '"repo:app/**" for all below it too'),
    ('principal == Agent::"bob"', 'Agent::"bob" is nobody: agents are named by their did:key:z…'),
    (f'Agent::"{AGENT}".name == "x"', f'Agent::"{AGENT}" stands by itself: compare principal or resource with it, '
     "by == or in"),
    ('resource in Scheme::"repo:"', 'Scheme::"repo:" is none: a scheme is what stands before the colon'),
    (f'resource == Agent::"{AGENT}"', "resource is compared with Resource::… or Scheme::…, never with Agent::…"),
]  # fmt: skip
# Those of which the engine does not tell where.
IN_THE_FIRST_LINE = [
    ("context.trust > \"a\"", "here stands a text where a number is needed"),
    ("context.trust", "here stands a number where a yes or no is needed"),
    ("context.trust == context.leaseMode", "a number is compared or mixed with a text"),
    ('context.leaseMode == 3', "a number is compared or mixed with a text"),
    ("context.leaseMode == 'live'", 'there is a sign that Cedar does not have; texts stand between " and "'),
]  # fmt: skip


def faults(text: str) -> list[str]:
    return [str(fault) for fault in check(text).faults]


@pytest.mark.parametrize(("condition", "sentence"), SENTENCES)
def test_a_fault_is_told_where_it_stands_and_what_was_meant(condition: str, sentence: str) -> None:
    text = f"{ALL}\n\n" + policy("forbid", f"\n{condition}", name="mine")
    (found,) = check(text).faults
    assert (found.line, found.text) == (4, sentence)
    assert found.policy in ("mine", ""), "what can't be read has no name yet"


@pytest.mark.parametrize(("condition", "sentence"), IN_THE_FIRST_LINE)
def test_a_fault_without_a_place_is_told_with_its_policy(condition: str, sentence: str) -> None:
    (found,) = check(f"{ALL}\n\n" + policy("forbid", f"\n{condition}", name="mine")).faults
    assert (found.line, found.text) == (3, sentence)


def test_a_name_that_its_scheme_folds_is_met_in_lower_case_alone() -> None:
    """Where names fold, a `forbid` with a capital letter would forbid nothing."""
    text = policy("forbid", 'resource in Resource::"doc:Secret/**" || resource == Resource::"repo:A"', name="mine")
    (found,) = check(text, lambda scheme: scheme == "doc").faults
    assert found.text == 'Resource::"doc:Secret/**" is never met: its scheme folds case, so write "doc:secret/**"'
    assert not check(text).faults


WHOLE = [
    ("", "line 1: a rule set is Cedar text of 1 to 16,384 printable ASCII characters, tabs and line feeds; this has 0"),
    ("// nothing", "line 1: a rule set has 1 to 64 policies, and this has 0"),
    (ALL + "\nx – y", "line 2: the character U+2013 is not one that a rule set may have: printable ASCII, tabs and "
     "line feeds"),
    ("permit(principal, action, resource);", 'line 1: this policy has no name; begin it with @id("a-name"), by which '
     "answers tell it"),
    ('@id("All") permit(principal, action, resource);', 'line 1: @id("All"): a name is 1 to 64 characters of a-z 0-9 . '
     "_ -"),
    ('@id("a") @obligation("tell Bob") permit(principal, action, resource);', 'line 1, policy a: @obligation("tell '
     'Bob"): it is 1 to 64 characters of a-z 0-9 : . _ -'),
    ('@id("a")\n@obligaton("x") permit(principal, action, resource);', "line 2, policy a: @obligaton means nothing "
     "here; did you mean obligation? (comments begin with //)"),
    (f"{ALL}\n{ALL}", "line 2, policy all: its name is that of the policy in line 1"),
    ('@id("a") permit(principal, action, resource)', "line 1: this policy does not end: there is no semicolon"),
    ('@id("a")\npermt(principal, action, resource);', "line 2: a policy begins with permit or forbid, not `permt`; did "
     "you mean permit?"),
    ('@id("a")\npermit(principal == ?principal, action, resource);', "line 1: a policy with a slot such as ?principal "
     "is no rule by itself"),
    ('@id("a") permit(principal is Operator, action, resource);', "line 1, policy a: its head fits no question: a "
     "principal is an Agent, in an Operator; a resource a Resource, in a Scheme"),
    (policy("permit", " && ".join(["true"] * 70)), "line 1: a condition has more than some 60 operators inside each "
     "other; make two policies of it"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "sentence"), WHOLE)
def test_what_is_wrong_with_a_set_as_a_whole(text: str, sentence: str) -> None:
    assert faults(text) == [sentence]


def test_all_faults_are_told_in_order_of_their_lines() -> None:
    text = "\n".join(
        [policy("permit", "context.a == 1", name="a"), "nonsense;", policy("forbid", "context.b == 1", name="b")]
    )
    assert [fault.line for fault in check(text).faults] == [1, 2, 3]


def test_a_set_has_at_most_64_policies_and_16_384_characters() -> None:
    policies = [policy("permit", name=f"p{n}") for n in range(65)]
    assert faults("\n".join(policies[:64])) == []
    assert faults("\n".join(policies)) == ["line 1: a rule set has 1 to 64 policies, and this has 65"]
    longest = ALL + " " * (RULES_CHARACTERS_MAX - len(ALL))
    assert faults(longest) == []
    assert "this has 16,385" in faults(longest + " ")[0]


def test_a_valid_set_tells_its_policies_with_their_lines() -> None:
    checked = check(f"\n{ALL}\n" + '@id("b")\n@obligation("tell:x")\nforbid(principal, action, resource);')
    assert checked.faults == ()
    assert [(line, one.id, one.effect, one.obligation) for line, one in checked.policies] == [
        (2, "all", "permit", ""),
        (3, "b", "forbid", "tell:x"),
    ]


def test_every_fact_may_be_asked_for() -> None:
    """The table of facts and what is checked of them fit: no fact has a bound that refuses each of its values."""
    for name, kind in CONTEXT:
        value = "1" if kind == "Long" else f"context.{name}"
        assert faults(policy("permit", f"context.{name} == {value}")) == [], name


def torn(text: str) -> Iterator[str]:
    """A set with each word and sign in turn left out, and doubled."""
    for found in re.finditer(r"\w+|[^\w\s]", text):
        yield text[: found.start()] + text[found.end() :]
        yield text[: found.end()] + " " + text[found.start() :]


def test_whatever_is_done_to_a_set_there_is_an_answer_with_a_line() -> None:
    text = starter_rules()
    last = text.count("\n") + 1
    for bent in torn(text):
        for fault in check(bent).faults:
            assert isinstance(fault, Fault)
            assert 1 <= fault.line <= last
            assert fault.text and "policy0" not in fault.text
