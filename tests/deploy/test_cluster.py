"""The cluster of `deploy/patroni/`, by its own files at other paths, ports and paces: a ledger may be written to it."""

import json
import shutil
from pathlib import Path

import psycopg
import pytest

from gateway.store.postgres_fit import findings, look
from gateway.store.postgres_link import Link
from gateway.store.postgres_schema import migrate
from tests.deploy.read import DEPLOY, read_yaml
from tests.pg.patroni_kit import DYNAMIC, HA, Cluster, Member
from tests.pg.server import programs
from tests.pg.yard import kill

pytestmark = [pytest.mark.postgres, pytest.mark.serial]
PACE = ("ttl", "loop_wait", "retry_timeout")  # ours would make the test wait
SECRETS = ("superuser", "replication", "rewind", "restapi", "owner", "gateway")
HISTORY = ("entry", "batch", "signed")


class Deployed(Cluster):
    """Three members by `patroni.yml`, `no-watchdog.yml`, `start` and `roles`."""

    def start(self, name: str) -> None:
        member, path = self.members[name], self.yard.path
        if not (path / "secrets").exists():
            self._install()
        folder = self.yard.own(self._folder(f"conf-{name}"))
        self.yard.write(f"conf-{name}/10-patroni.yml", json.dumps(self._deployed(member)))  # JSON is YAML
        shutil.copy(DEPLOY / "patroni/no-watchdog.yml", folder / "90-no-watchdog.yml")
        (folder / "90-no-watchdog.yml").chmod(0o644)
        member.process = self.yard.spawn(
            name, path / "start", folder,
            PATH=f"{programs()}:{self.yard.environment['PATH']}", TALLYSTICK_SECRETS=str(path / "secrets"),
            TALLYSTICK_PATRONI=str(path / "patroni"), PATRONI_NAME=name,
            PATRONI_ETCD3_HOSTS=f"127.0.0.1:{self.etcd_port}",
            PATRONI_POSTGRESQL_CONNECT_ADDRESS=f"127.0.0.1:{member.port}",
            PATRONI_RESTAPI_CONNECT_ADDRESS=f"127.0.0.1:{member.rest}",
        )  # fmt: skip

    def _folder(self, name: str) -> Path:
        folder = self.yard.path / name
        folder.mkdir(exist_ok=True)
        return folder

    def _install(self) -> None:
        self.yard.own(self._folder("secrets"))
        for name in SECRETS:
            self.yard.write(f"secrets/{name}.pass", self.yard.environment["PGPASSWORD"] + "\n")
        for name in ("start", "roles"):
            self.yard.write(name, (DEPLOY / "patroni" / name).read_text("utf-8"), 0o755)
        program = f'exec "{HA}/bin/python" "{self.yard.path}/patroni_ttl.py" "$@"'
        self.yard.write("patroni", f"#!/bin/sh\n{program}\n", 0o755)

    def _deployed(self, member: Member) -> dict[str, object]:
        """Return patroni.yml with what is of this machine and of its pace; everything else as it stands."""
        settings = read_yaml("patroni/patroni.yml")
        settings["restapi"]["listen"] = f"127.0.0.1:{member.rest}"
        settings["bootstrap"]["dcs"].update({name: DYNAMIC[name] for name in PACE})
        settings["bootstrap"]["post_bootstrap"] = str(self.yard.path / "roles")
        settings["bootstrap"]["initdb"].append("no-sync")
        postgresql = settings["postgresql"]
        postgresql.update(
            listen=f"127.0.0.1:{member.port}", bin_dir=str(programs()), data_dir=str(self.yard.path / member.name),
            pgpass=str(self.yard.path / f"pgpass.{member.name}"),
        )  # fmt: skip
        sockets = self.yard.own(self._folder(f"s-{member.name}"))
        postgresql["parameters"].update(
            unix_socket_directories=str(sockets), shared_buffers="32MB", dynamic_shared_memory_type="mmap"
        )
        peer, *others = postgresql["pg_hba"]
        postgresql["pg_hba"] = [peer.replace("peer", "scram-sha-256"), *others]  # here the user is not postgres
        return settings

    def _add_role(self) -> None:
        """`roles` did that."""

    def close(self) -> None:
        """Nothing is needed any more, so nobody is asked to end well."""
        for member in self.members.values():
            if member.process is not None:
                kill(member.process)
        super().close()

    def url(self, role: str) -> str:
        places = ",".join(f"127.0.0.1:{member.port}" for member in self.members.values())
        return f"postgresql://{role}@{places}/tallystick"


def test_the_cluster_is_fit_for_a_ledger_and_its_gateways_can_not_undo_history(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Deployed()
    with cluster:
        monkeypatch.setenv("PGPASSWORD", cluster.yard.environment["PGPASSWORD"])
        owner = Link(cluster.url("tallystick_owner"))
        assert migrate(owner)[0] == 0
        owner.close()
        gateway = Link(cluster.url("tallystick"))
        facts = look(gateway)
        assert facts.may_see_standbys and facts.standby_count == 1
        assert findings(facts, "replicated") == []
        assert cluster.sql("show data_checksums") == [("on",)] and cluster.sql("show wal_log_hints") == [("on",)]
        for role in ("tallystick", "tallystick_owner", "replicator", "rewinder"):
            assert cluster.sql(f"select rolsuper from pg_roles where rolname = '{role}'") == [(False,)]
        gateway.close()
        with psycopg.connect(cluster.url("tallystick"), target_session_attrs="read-write", autocommit=True) as session:
            for table in HISTORY:
                for statement in (
                    f"truncate tallystick.{table}",
                    f"alter table tallystick.{table} disable trigger all",
                ):
                    with pytest.raises(psycopg.errors.InsufficientPrivilege):
                        session.execute(statement.encode())
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                session.execute("set session_replication_role = replica")
