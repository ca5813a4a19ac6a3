"""What an agent sends to a guarded service: admitted first, then signed, with the receipt in the header.

    call = await guarded_request(agent, "PUT", "https://store.example/files/a.py", content,
                                 operation="file.write", resources="repo:app/a.py")
    async with session.request(call.method, call.url, data=call.body, headers=call.headers) as answer:
        ...

Nothing is sent here: whichever HTTP client the program has does that, with redirects off. When no answer comes, the
same call may be sent again while it is fresh; 409 `used` then says that the first one was let in.
Source: docs/protocol.md 41.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from yarl import URL

from gateway.client.admission import Admission
from gateway.client.agent import Agent
from gateway.client.approval import SignedApproval
from gateway.client.errors import NotWitnessed
from gateway.client.guards.carrier import HEADER, receipt_lines
from gateway.client.guards.request import arguments_of
from gateway.client.holdings import Tokened
from gateway.client.signing import Draft, new_idempotency_key, new_nonce, sign_request
from verifier.policy import Policy
from verifier.receipt import check_receipt
from verifier.request import is_path, is_query
from verifier.wire import Malformed

LIFE_S = 60
LOOK_MS = 500
_OCTETS = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class GuardedRequest:
    """A request ready to be sent as it is; `headers` are lines, of which several may have one name."""

    method: str
    url: URL
    headers: tuple[tuple[str, str], ...]
    body: bytes | None
    admission: Admission | None = None


async def guarded_request(
    agent: Agent,
    method: str,
    url: str,
    body: bytes | None = None,
    *,
    operation: str,
    resources: str | Sequence[str],
    mode: str = "write",
    content_type: str = _OCTETS,
    cost: int = 0,
    lease: Tokened | None = None,
    approvals: Sequence[SignedApproval] = (),
    policy: Policy | None = None,
) -> GuardedRequest:
    """Ask for an admission of exactly this request and return it signed, for a service with an AdmissionGuard.

    AdmissionDenied says why not. Malformed for a URL outside the profile's grammar: names with other characters belong
    into the query or the body. With `policy` it waits until its witnesses stand for the receipt, as an irreversible
    scheme needs it; NotWitnessed when the admission ends first.
    """
    target = _target(url)
    arguments = arguments_of(method, target.raw_path, target.raw_query_string, body or b"")
    admission = await agent.admit(
        operation, resources, mode=mode, arguments=arguments, cost=cost, lease=lease, approvals=approvals
    )
    receipt = admission.receipt.data if policy is None else await _witnessed(agent, admission, policy)
    signed = fenced_request(agent, method, url, body, receipt=receipt, content_type=content_type)
    return replace(signed, admission=admission)


def fenced_request(
    agent: Agent, method: str, url: str, body: bytes | None = None, *, receipt: bytes, content_type: str = _OCTETS
) -> GuardedRequest:
    """Return a request signed by this agent's key with a receipt of it: of a lease, for a service with a FenceGuard."""
    target = _target(url)
    draft = Draft(
        method, _authority(target), target.raw_path, target.raw_query_string, agent.caller.seen.anchor, body,
        None if body is None else new_idempotency_key(), content_type,
    )  # fmt: skip
    created_s = agent.caller.ledger_now_ms // 1_000
    signed = sign_request(draft, agent.profile.key, created_s=created_s, nonce=new_nonce(), life_s=LIFE_S)
    lines = tuple((HEADER, line) for line in receipt_lines(receipt))
    return GuardedRequest(method, target, (*signed.items(), *lines), body)


def _target(url: str) -> URL:
    """Return a URL whose path and query every server reads alike, as a service behind a guard demands."""
    target = URL(url, encoded=True)
    if not is_path(target.raw_path) or not is_query(f"?{target.raw_query_string}"):
        raise Malformed("a guarded URL has a path of at most 255 of A-Z a-z 0-9 . _ ~ / -, without // and /.")
    return target


def _authority(url: URL) -> str:
    """Return the host and port as HTTP clients send them."""
    host = url.host_port_subcomponent
    assert host is not None, "a URL with a host"
    return host


async def _witnessed(agent: Agent, admission: Admission, policy: Policy) -> bytes:
    """Return the receipt proven at a checkpoint that the quorum cosigned, while the admission lasts."""
    keyring = replace(agent.profile.keyring, policy=policy)
    while agent.clock.steady_ms() < admission.trust_ends_ms:
        receipt = await agent.receipt(admission.seq)
        if check_receipt(receipt.data, keyring, level="witnessed").exit_code == 0:
            return receipt.data
        await agent.clock.sleep(LOOK_MS)
    raise NotWitnessed(f"no witnesses stood for entry {admission.seq} before the admission ended")
