"""Schemes: how names fold and which modes share, as an operator set it.

What a scheme says is decided with leases in hand, so it changes only when none of them lives: then nobody's lease ever
means something else than its entry said.

Source: docs/protocol.md 26; security.md §4.
"""

from __future__ import annotations

import unicodedata

from gateway.core import refusal
from gateway.core.authority import is_operator
from gateway.core.draft import Draft
from gateway.core.intake import SignedRequest
from gateway.core.lookup import scheme_at
from gateway.core.outcome import Context, Decision, granted, refused
from gateway.core.parameters import Parameters
from gateway.core.record_keys import scheme_key
from gateway.core.records import Scheme
from gateway.core.resource import DEFAULT_CLASS, is_any_live
from verifier.wire import JsonObject


def set_scheme(draft: Draft, request: SignedRequest, context: Context) -> Decision:
    """Set what a scheme is; setting it again to the same is always fine."""
    name = request.text("name")
    if not is_operator(draft, request.actor):
        return refused("scheme.refused", refusal.OPERATOR_REQUIRED, {"name": name})
    wanted = _wanted(request, context)
    before = scheme_at(draft, name) or unset(name, context.parameters)
    if wanted._replace(seq=before.seq) != before and is_any_live(draft, f"{name}:**", context.t_ms):
        return refused("scheme.refused", refusal.SCHEME_BUSY, {"name": name})
    draft.put(scheme_key(name), wanted)
    return granted("scheme.set", scheme_members(wanted) | {"unicodeVersion": unicodedata.unidata_version})


def unset(name: str, parameters: Parameters) -> Scheme:
    """Return what a scheme is that nobody has set."""
    return Scheme(name, DEFAULT_CLASS, False, False, parameters.lock_delay_ms, parameters.max_hold_ms, 0)


def scheme_members(scheme: Scheme) -> JsonObject:
    return {
        "name": scheme.name,
        "class": scheme.class_name,
        "isFolding": scheme.is_folding,
        "isUnicode": scheme.is_unicode,
        "lockDelayMs": scheme.lock_delay_ms,
        "maxHoldMs": scheme.max_hold_ms,
    }


def _wanted(request: SignedRequest, context: Context) -> Scheme:
    """Return what is asked for; lengths of time that are left out are those of entry 0."""
    return Scheme(
        name=request.text("name"),
        class_name=request.text("class"),
        is_folding=request.flag("isFolding"),
        is_unicode=request.flag("isUnicode"),
        lock_delay_ms=_number(request, "lockDelayMs", context.parameters.lock_delay_ms),
        max_hold_ms=_number(request, "maxHoldMs", context.parameters.max_hold_ms),
        seq=context.seq,
    )


def _number(request: SignedRequest, name: str, default: int) -> int:
    return request.number(name) if name in request.body else default
