"""The OpenAPI document is valid, complete, and true of what the gateway serves."""

from typing import Any

from openapi_spec_validator import OpenAPIV31SpecValidator

from gateway.actions import ACTIONS
from gateway.core.refusal import TABLE
from gateway.web.openapi import openapi
from gateway.web.problem import ROWS
from tests.web.world import ORIGIN, World
from verifier.entries import ACTION_BODIES, ACTION_PATHS, ENTRY_TYPES, body_schema, full_type


def test_the_document_is_valid_openapi_31() -> None:
    assert [error.message for error in OpenAPIV31SpecValidator(openapi(ORIGIN)).iter_errors()] == []


async def test_the_served_document_is_the_produced_one(public: World) -> None:
    reply = await public.get("/openapi.json")
    assert (reply.status, reply.headers["content-type"], reply.json) == (200, "application/json", openapi(ORIGIN))


def test_every_action_has_its_operation_and_every_decision_its_body() -> None:
    paths = openapi(ORIGIN)["paths"]
    assert isinstance(paths, dict)
    for action in ACTIONS.values():
        operation = paths[action.path][action.method.lower()]
        assert operation["operationId"] == action.name
        if action.kind == "decision":
            body = operation["requestBody"]["content"]["application/json"]["schema"]
            assert body == body_schema(action.name)


def test_the_table_of_actions_is_the_verifiers_table_of_bodies() -> None:
    decisions = {action.name: action.path for action in ACTIONS.values() if action.kind == "decision"}
    assert decisions == dict(ACTION_PATHS)
    assert set(decisions) == set(ACTION_BODIES)
    answered = {entry for action in ACTIONS.values() for entry in action.answers}
    asked = {row.type for row in ENTRY_TYPES.values() if row.cause == "request" and row.action is not None}
    assert answered == asked


def test_every_problem_code_is_in_the_schema_and_no_name_means_two_things() -> None:
    components = openapi(ORIGIN)["components"]
    assert isinstance(components, dict)
    codes = components["schemas"]["Problem"]["properties"]["code"]["enum"]
    unreceipted = {row.name for row in TABLE if not row.is_receipted}
    assert set(codes) == set(ROWS) | unreceipted
    assert set(ROWS) & {row.name for row in TABLE} == {"outside_window"}
    assert ROWS["outside_window"].status == next(row.status for row in TABLE if row.name == "outside_window")


def operation_of(name: str) -> Any:
    action, paths = ACTIONS[name], openapi(ORIGIN)["paths"]
    assert isinstance(paths, dict)
    return paths[action.path][action.method.lower()]


def test_what_leaves_the_asker_waiting_is_told_apart_from_what_is_granted() -> None:
    for name, waiting, done in (
        ("lease.acquire", ["wait.queued"], ["lease.granted", "lease.extended"]),
        ("wait.claim", ["wait.polled"], ["lease.claimed"]),
    ):
        answers = operation_of(name)["responses"]
        for status, leaves in (("202", waiting), ("200", done)):
            schema = answers[status]["content"]["application/json"]["schema"]
            assert schema["x-tallystick-leaves"] == [full_type(leaf) for leaf in leaves]
    others = [name for name, action in ACTIONS.items() if "202" in operation_of(name)["responses"]]
    assert others == ["lease.acquire", "wait.claim"]


def test_refusals_have_their_own_shape_and_say_when_to_come_back() -> None:
    components: Any = openapi(ORIGIN)["components"]
    refusal = components["schemas"]["Refusal"]["properties"]
    assert refusal["error"]["enum"] == sorted(row.name for row in TABLE if row.is_receipted)
    assert {"conflict", "cycle", "acquireOrder", "ahead", "ticketId", "delayUntilMs", "retryAfterMs"} < set(refusal)
    for action in ACTIONS.values():
        answers = operation_of(action.name)["responses"]
        if action.kind == "decision" and action.name not in ("session.open", "coordination.admit"):
            assert all("Retry-After" in answers[status]["headers"] for status in ("409", "429"))
            leaves = answers["409"]["content"]["application/json"]["schema"]["x-tallystick-leaves"]
            assert leaves and all(leaf.endswith(".refused/1") for leaf in leaves)


def test_a_denied_admission_is_forbidden_and_says_what_an_allowed_one_says() -> None:
    answers = operation_of("coordination.admit")["responses"]
    assert sorted(answers) == ["200", "403", "default"]
    said = {status: answers[status]["content"]["application/json"]["schema"] for status in ("200", "403")}
    assert [said[status]["x-tallystick-leaves"] for status in said] == [
        [full_type("admission.allowed")], [full_type("admission.denied")],
    ]  # fmt: skip
    assert all({"$ref": "#/components/schemas/Ruled"} in schema["allOf"] for schema in said.values())
    components: Any = openapi(ORIGIN)["components"]
    ruled = components["schemas"]["Ruled"]
    assert {"allowed", "isPoliced", "matched", "obligations"} == set(ruled["required"])
    assert {"rules", "facts", "schemes"} < set(ruled["properties"])


def test_who_may_ask_how_is_said_of_every_operation() -> None:
    signature: dict[str, list[str]] = {"signature": []}
    bearer: dict[str, list[str]] = {"bearer": []}
    for name, expected in (
        ("lease.acquire", [signature, bearer]),
        ("session.open", [signature]),
        ("agent.add", [signature]),
        ("agent.enrol", [bearer]),
        ("agent.list", [signature, bearer, {}]),
        ("ledger.seen", [{}]),
    ):
        operation = operation_of(name)
        assert operation["security"] == expected
        required = {row["name"] for row in operation["parameters"] if row["in"] == "header" and row["required"]}
        assert ("Signature" in required) == (expected == [signature])
    components: Any = openapi(ORIGIN)["components"]
    assert set(components["securitySchemes"]) == {"signature", "bearer"}


def test_an_enrolment_is_answered_as_what_the_gateway_asks_for() -> None:
    operation = operation_of("agent.enrol")
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    assert (set(schema["properties"]), schema["required"]) == ({"agent", "name", "proof"}, ["agent", "proof"])
    leaves = operation["responses"]["200"]["content"]["application/json"]["schema"]["x-tallystick-leaves"]
    assert leaves == [full_type("agent.added")]


def test_a_session_that_may_not_open_is_told_by_a_problem() -> None:
    assert set(operation_of("session.open")["responses"]) == {"200", "default"}


async def test_an_answer_to_a_batch_has_the_shape_of_the_document(public: World) -> None:
    commands = [{"action": "lease.acquire", "resource": f"lock:{number}"} for number in range(2)]
    answer = (await public.ask("a", "batch.submit", commands=commands)).json
    components: Any = openapi(ORIGIN)["components"]
    schema = components["schemas"]["BatchAnswer"]
    assert set(answer) == set(schema["properties"])
    assert set(answer["batch"]) == set(schema["properties"]["batch"]["properties"])
    assert set(schema["properties"]["results"]["items"]["required"]) < set(answer["results"][0])
    ref = operation_of("batch.submit")["responses"]["200"]["content"]["application/json"]["schema"]["allOf"]
    assert ref == [{"$ref": "#/components/schemas/BatchAnswer"}]


def test_every_answer_to_a_decision_says_what_is_left() -> None:
    for action in ACTIONS.values():
        answers = operation_of(action.name)["responses"]
        if action.kind in ("decision", "enrolment"):
            told = [answer for status, answer in answers.items() if status != "default"]
            assert told and all({"RateLimit", "RateLimit-Policy"} <= set(answer["headers"]) for answer in told)


def test_the_wish_to_wait_is_a_header_of_claims_alone() -> None:
    asking = [
        action.name
        for action in ACTIONS.values()
        if any(row["name"] == "Prefer" for row in operation_of(action.name)["parameters"])
    ]
    assert asking == ["wait.claim"]
    assert "Preference-Applied" in operation_of("wait.claim")["responses"]["200"]["headers"]


async def test_every_path_of_the_document_is_served(public: World) -> None:
    paths = openapi(ORIGIN)["paths"]
    assert isinstance(paths, dict)
    for path, methods in paths.items():
        target = path.format(seq="0", level="0", index="000.p/1")
        for method in methods:
            message = (await public.get(target)) if method == "get" else None
            is_absent = path == "/main/witnessed" and message is not None and message.status == 404  # no witnesses
            assert message is None or is_absent or message.status in (200, 400), (path, message)
