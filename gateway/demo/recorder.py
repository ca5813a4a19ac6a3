"""Watches what the demo's agents send and get, without touching them: a transport around the transport."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.client.batch import cut_batch
from gateway.client.receipts import receipt_in
from gateway.client.transport import HttpTransport, Reply, Transport
from verifier.entries import ACTION_PATHS
from verifier.wire import LEAF_BYTES_MAX, RECEIPT_BYTES_MAX, JsonObject, decode_base64, parse_canonical, parse_json


@dataclass(slots=True)
class Record:
    """Everything seen so far; one for the whole swarm. Receipts by `seq`, so that a replayed answer counts once."""

    receipts: dict[int, bytes] = field(default_factory=dict)
    leaves: dict[int, JsonObject] = field(default_factory=dict)
    latencies_ms: list[float] = field(default_factory=list)

    def keep(self, receipt: bytes) -> None:
        """Keep a receipt the agent is about to verify."""
        leaf = leaf_of(receipt)
        seq = leaf["seq"]
        assert isinstance(seq, int)
        self.receipts[seq] = receipt
        self.leaves[seq] = leaf


def leaf_of(receipt: bytes) -> JsonObject:
    """Return what a receipt's leaf says, before anybody has verified it."""
    payload = parse_json(receipt, bytes_max=RECEIPT_BYTES_MAX)["payload"]
    return parse_canonical(decode_base64(str(payload)), bytes_max=LEAF_BYTES_MAX)


def _receipts_in(answer: bytes) -> tuple[bytes, ...]:
    """Return the receipt of an answer, or of each command if it answers a batch."""
    batch, receipt = cut_batch(answer), receipt_in(answer)
    return batch.receipts if batch is not None else () if receipt is None else (receipt,)


class RecordingTransport:
    """Hands everything on and notes each decision: its receipt and how long it took."""

    def __init__(self, url: str, record: Record) -> None:
        self._inner: Transport = HttpTransport(url)
        self._record = record

    async def send(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None, timeout_ms: int
    ) -> Reply:
        started_s = time.perf_counter()
        reply = await self._inner.send(method, target, headers, body, timeout_ms)
        receipts = _receipts_in(reply.unverified_body) if target in ACTION_PATHS.values() else ()
        if receipts and target != ACTION_PATHS["wait.claim"]:  # which the gateway keeps waiting on purpose
            self._record.latencies_ms.append((time.perf_counter() - started_s) * 1_000)
        for receipt in receipts:
            self._record.keep(receipt)
        return reply

    async def close(self) -> None:
        await self._inner.close()
