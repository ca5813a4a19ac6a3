"""A sequencer's one connection: made and checked, suspicious until the ledger was loaded on it, given up when in doubt.

A new connection may lead to another server, which lacks what the old one showed. So nothing that was known before
counts on it, and no batch, barrier or signature is written on it, before `load` was called.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Sequence
from typing import Any, LiteralString

from gateway.errors import HeadMoved, Unfit
from gateway.store import postgres_text as text
from gateway.store.postgres_fit import REPLICATED, greet
from gateway.store.postgres_link import BEGIN, Link, Lost, Statement, parameters_of, plain
from gateway.store.postgres_reader import Reads
from gateway.store.postgres_schema import check_version, ledger_of


class Session(Reads):
    """The connection of a store, and what is known on it."""

    def __init__(
        self, url: str, origin: str, *, durability: str, manner: str, node: str, is_manner_accepted: bool
    ) -> None:
        parameters_of(url)
        self.durability = durability
        self._url, self._origin, self._manner = url, origin, manner
        self._node = node or socket.gethostname()
        self._is_manner_accepted = is_manner_accepted
        self._is_starting = True  # until its first batch: who starts it waits for the stand-by, but not for ever
        self._link: Link | None = None
        self._name = ""  # of the session, which no other has
        self._is_loaded = False
        self._has_head = False
        self._unfit: Unfit | None = None  # why this server is read only, and nothing is written

    def _connect(self) -> Link:
        """Return a connection on which nothing is known yet. Lost, Fatal."""
        self._drop()
        link = Link(self._url)
        try:
            check_version(link)
            self._ledger = ledger_of(link, self._origin)
            self._name = secrets.token_hex(8)
            self._greet(link)
        except BaseException:
            link.close()
            raise
        self._link = link
        return link

    def _greet(self, link: Link) -> None:
        """Find out whether the server may be written. One that may not is read all the same."""
        self._unfit = None
        try:
            greet(link, self._name, self.durability)
        except Unfit as unfit:
            self._unfit = unfit

    def _drop(self) -> None:
        self._is_loaded = self._has_head = False
        if self._link is not None:
            self._link.close()

    def _known(self) -> Link:
        """Return the connection that `load` was called on. HeadMoved when there is none any more."""
        if self._link is None or self._link.is_closed or not self._is_loaded:
            self._drop()
            raise HeadMoved("the connection is new, and may show another history; load again")
        if self._unfit is not None:
            self._check_again(self._link)
        return self._link

    def _check_again(self, link: Link) -> None:
        """Raise what makes the server unfit; HeadMoved when nothing does any more, for no barrier was written."""
        self._end()
        self._greet(link)
        if self._unfit is not None:
            raise self._unfit
        self._is_loaded = False
        raise HeadMoved("the server may be written again; load again")

    def _barrier(self, link: Link) -> None:
        """Commit something small: what was seen on this connection is as durable as a batch then."""
        self._commit(link, plain(BEGIN), text.barrier(self._ledger, self._node, self._manner))

    def _announce(self, link: Link) -> None:
        """Commit a barrier that tells other nodes of this start. Unfit when the start would make live ones unfit; then
        nothing was written."""
        link.run(plain(BEGIN), text.starting(self._ledger))
        self._check_manner(link)
        self._commit(link, text.barrier(self._ledger, self._node, self._manner, is_start=True))

    def _check_manner(self, link: Link) -> None:
        """Unfit when a start would change the manner of a ledger under live nodes, and no operator wants that."""
        rows = [] if self._is_manner_accepted else link.run(text.others(self._ledger, self._node, self._manner))[0]
        if not rows:
            return
        self._end()
        others = "; ".join(f'{name} writes "{manner}" and was heard of {age_s} s ago' for name, manner, age_s in rows)
        raise Unfit(
            f'a start of this node would make others unfit: it writes "{self._manner}" (durability and rules), but'
            f" {others}. Give it the same settings and the same cedarpy, or stop the others first, or, if all are to"
            " change, start it once with --accept-manner"
        )

    def _commit(
        self, link: Link, *statements: Statement, hint: Statement | None = None, is_last: bool = False
    ) -> list[list[tuple[Any, ...]]]:
        """Commit. Unknown, too, when the server stopped to demand stand-bys meanwhile, which ends all waits for one."""
        fault = text.UNDEMANDED if self.durability == REPLICATED else None
        return link.commit(*statements, fault=fault, hint=hint, is_bounded=self._is_starting or is_last)

    def _end(self) -> None:
        """End the transaction, whichever it is, without a write. Never raises."""
        if self._link is not None:
            self._link.roll_back()
        self._has_head = False

    def _rows(self, query: LiteralString, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        if self._link is None or self._link.is_closed:
            raise Lost("there is no connection")
        try:
            return self._link.rows(query, (self._ledger, *values))
        except Exception:
            self._has_head = False
            raise
