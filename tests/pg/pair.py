"""Two servers, the second a synchronous stand-by of the first, without anybody who would fail over by himself.

A scene kills, promotes and brings back; after `promote` the names `primary` and `standby` have changed sides.
`postgresql.conf` is the same on both, so whoever is primary waits for the other: nothing is ever durable on one alone.
"""

from __future__ import annotations

from tests.pg.server import Server, open_yard, password, programs

SLOT = "s1"
STANDBYS = f"ANY 1 ({SLOT})"
# What pg_rewind asks its source for; with these it needs no superuser.
_REWIND_CALLS = (
    "pg_ls_dir(text, boolean, boolean)",
    "pg_stat_file(text, boolean)",
    "pg_read_binary_file(text)",
    "pg_read_binary_file(text, bigint, bigint, boolean)",
)


class Pair:
    """A primary and its synchronous stand-by, in a yard of their own."""

    def __init__(self) -> None:
        self.yard = open_yard()
        self.primary = Server(self.yard, "one")
        self.standby = Server(self.yard, "two")

    def __enter__(self) -> Pair:
        try:
            self._begin()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.yard.close()

    def _begin(self) -> None:
        self.primary.create()
        self.primary.start()
        self.primary.add_role()
        self._add_helpers()
        source = self.primary.dsn(user="repl", application_name=SLOT)
        self.yard.run(
            programs() / "pg_basebackup", "-D", self.standby.data, "-d", source, "-X", "stream", "-c", "fast",
            "-S", SLOT, "-R", "--no-sync",
        )  # fmt: skip
        self.start_standby()
        self.demand_standby()

    def _add_helpers(self) -> None:
        """The roles that follow and rewind, and the place in the log that is kept for the stand-by."""
        self.primary.sql(f"create role repl login replication password '{password()}'")
        self.primary.sql(f"create role rewind login password '{password()}'")
        for call in _REWIND_CALLS:
            self.primary.sql(f"grant execute on function pg_catalog.{call} to rewind")
        self._keep_place()

    def _keep_place(self) -> None:
        self.primary.sql(f"select pg_create_physical_replication_slot('{SLOT}')")

    def demand_standby(self, names: str = STANDBYS) -> None:
        """Let the primary wait for the stand-by at each commit; returns when it does ("" lets it wait for nobody)."""
        self.primary.sql(f"alter system set synchronous_standby_names = '{names}'")
        self.primary.sql("select pg_reload_conf()")
        self.yard.until(lambda: self.primary.sql("show synchronous_standby_names") == [(names,)], self.primary.name)
        if names:
            self.await_standby()

    def await_standby(self) -> None:
        """Return when the stand-by counts for commits."""
        asked = "select 1 from pg_stat_replication where sync_state = 'quorum'"
        self.yard.until(lambda: bool(self.primary.sql(asked)), self.standby.name)

    def stop_standby(self) -> None:
        """From now on a COMMIT waits, as long as it takes."""
        self.standby.stop()

    def start_standby(self) -> None:
        self.standby.start()

    def kill_primary(self) -> None:
        """kill −9 of the primary's postmaster."""
        self.primary.kill()

    def promote(self) -> None:
        """Make the stand-by the primary. The old one is the stand-by from here on, down, and not yet of this history.

        The new primary demands a stand-by from its first commit on, as a manager of a cluster sees to.
        """
        with (self.standby.data / "postgresql.auto.conf").open("a", encoding="utf-8") as settings:
            settings.write(f"synchronous_standby_names = '{STANDBYS}'\n")
        self.standby.sql("select pg_reload_conf()")
        self.yard.run(programs() / "pg_ctl", "promote", "-D", self.standby.data, "-w")
        self.primary, self.standby = self.standby, self.primary
        self._keep_place()
        self.primary.sql("checkpoint")  # pg_rewind reads the new history from the control file

    def rejoin(self) -> None:
        """Bring the old primary back as a stand-by: what it wrote alone is undone. Returns when it counts."""
        source = self.primary.dsn(user="rewind")
        self.yard.run(programs() / "pg_rewind", "-D", self.standby.data, "--source-server", source, "--no-sync")
        signal = self.standby.data / "standby.signal"
        signal.touch(mode=0o600)
        self.yard.own(signal)
        conninfo = self.primary.dsn(user="repl", application_name=SLOT)
        with (self.standby.data / "postgresql.auto.conf").open("a", encoding="utf-8") as settings:
            settings.write(f"primary_conninfo = '{conninfo}'\nprimary_slot_name = '{SLOT}'\n")
        self.start_standby()
        self.await_standby()

    def url(self, database: str) -> str:
        """Return an address of both servers, of which libpq takes the one that can be written to."""
        ports = ",".join(f"127.0.0.1:{server.port}" for server in (self.primary, self.standby))
        return f"postgresql://tally@{ports}/{database}?target_session_attrs=read-write"
