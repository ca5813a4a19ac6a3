"""What `deploy/` promises: nothing runs as root, nothing floats, no secret, one TLS end, commits that wait."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gateway.config import Settings, settings_from
from gateway.store.postgres_link import PASSWORD_CREDENTIAL
from tests.deploy.read import DEPLOY, ROOT, instructions, read_proxy, read_unit, read_yaml

COMPOSE = read_yaml("compose.yaml")
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
PATRONI = read_yaml("patroni/patroni.yml")
DOCKERFILES = ("gateway.Dockerfile", "patroni/Dockerfile")
UNITS = ("tallystick@.service", "tallystick-witness.service")
FILES = sorted(path for path in DEPLOY.rglob("*") if path.is_file() and "secrets" not in path.parts)
GATEWAYS = ("gateway-1", "gateway-2")
DATABASES = ("db-1", "db-2", "db-3")
MEMBERS = ("etcd-1", "etcd-2", "etcd-3")


def parts(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))


# -- Compose -----------------------------------------------------------------------------------------------------------


def test_the_services_are_those_of_the_page() -> None:
    assert set(SERVICES) == {*MEMBERS, *DATABASES, *GATEWAYS, "schema", "proxy"}
    assert SERVICES["schema"]["profiles"] == ["operator"], "only an operator starts it"


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_pinned_closed_and_looked_after(name: str) -> None:
    service = SERVICES[name]
    tag = service["image"].rpartition(":")[2]
    if "build" in service:
        assert tag == "local" and (DEPLOY / service["build"]["context"]).resolve() == ROOT
        assert (ROOT / service["build"]["dockerfile"]).is_file()
    else:
        assert len(parts(tag)) == 3
    assert service["read_only"] is True and service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["healthcheck"].get("test") or name == "schema"
    assert not service.get("privileged") and "cap_add" not in service and "devices" not in service


def test_what_is_used_is_declared_and_what_is_declared_is_used() -> None:
    for kind in ("volumes", "networks", "secrets"):
        used = set()
        for service in SERVICES.values():
            for item in service.get(kind, ()):
                name = item["source"] if isinstance(item, dict) else item.split(":")[0]
                if not name.startswith("."):  # a file beside this one
                    used.add(name)
        assert used == set(COMPOSE[kind]), kind
    for service in SERVICES.values():
        assert set(service.get("depends_on", ())) <= set(SERVICES)


def test_every_file_that_is_mounted_is_there() -> None:
    mounted = [volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", ())]
    files = {name for name in mounted if name.startswith("./")}
    assert {name for name in files if not (DEPLOY / name).is_file()} == {"./secrets/tls.pem"}


def test_only_the_proxy_has_a_port_and_it_is_on_loopback() -> None:
    ports = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert ports == {"proxy": ["127.0.0.1:443:8443"]}
    assert COMPOSE["networks"] == {"front": {}, "database": {"internal": True}, "agreement": {"internal": True}}
    reach = {name: set(service["networks"]) for name, service in SERVICES.items()}
    assert reach["proxy"] == {"front"} and reach["gateway-1"] == reach["gateway-2"] == {"front", "database"}
    assert all(reach[name] == {"agreement", "database"} for name in DATABASES)
    assert all(reach[name] == {"agreement"} for name in MEMBERS)


def test_no_variable_is_asked_of_whoever_starts_it() -> None:
    assert "${" not in (DEPLOY / "compose.yaml").read_text("utf-8").replace("$${", "")
    for name, service in SERVICES.items():
        for key, value in service.get("environment", {}).items():
            assert value not in (None, ""), f"{name}: {key}"


def test_the_databases_are_alike_but_for_their_names() -> None:
    for name in DATABASES:
        assert SERVICES[name]["environment"] == {
            "PATRONI_NAME": name,
            "PATRONI_ETCD3_HOSTS": ",".join(f"{member}:2379" for member in MEMBERS),
            "PATRONI_POSTGRESQL_CONNECT_ADDRESS": f"{name}:5432",
            "PATRONI_RESTAPI_CONNECT_ADDRESS": f"{name}:8008",
        }
    for name in MEMBERS:
        environment = SERVICES[name]["environment"]
        assert environment["ETCD_NAME"] == name and environment["ETCD_INITIAL_CLUSTER"].count(f"{name}=") == 1
        assert environment["ETCD_ADVERTISE_CLIENT_URLS"] == f"http://{name}:2379"


def test_etcd_is_none_of_those_that_lose_data_when_they_are_killed() -> None:
    assert all(parts(SERVICES[name]["image"].rpartition(":")[2]) >= (3, 5, 6) for name in MEMBERS)


def test_a_gateway_has_its_password_and_no_other_secret() -> None:
    for name in GATEWAYS:
        assert SERVICES[name]["secrets"] == [{"source": "gateway.pass", "target": PASSWORD_CREDENTIAL}]
        assert SERVICES[name]["environment"] == {"CREDENTIALS_DIRECTORY": "/run/secrets"}
        assert SERVICES[name]["user"] == "10001:10001"
    assert SERVICES["schema"]["secrets"] == [{"source": "owner.pass", "target": PASSWORD_CREDENTIAL}]
    assert SERVICES["gateway-1"]["volumes"] != SERVICES["gateway-2"]["volumes"], "a node has a folder of its own"


def seconds(text: str) -> int:
    assert text.endswith("s")
    return int(text[:-1])


def test_a_stop_has_time_to_drain() -> None:
    settings = example()
    drain = settings.drain_seconds + settings.drain_delay_seconds
    assert all(seconds(SERVICES[name]["stop_grace_period"]) >= drain + 10 for name in GATEWAYS)
    (stop,) = read_unit("tallystick@.service")["Service.TimeoutStopSec"]
    assert int(stop) >= drain + 10
    check = next(line for line in read_proxy()["backend deciding"] if line.startswith("default-server"))
    assert "inter 1s" in check and settings.drain_delay_seconds >= 3, "the proxy looks away before the node is gone"


# -- images ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DOCKERFILES)
def test_an_image_is_pinned_hashed_and_not_roots(name: str) -> None:
    lines = list(instructions(name))
    stages = [rest.split()[0] for word, rest in lines if word == "FROM"]
    (argument,) = [rest for word, rest in lines if word == "ARG"]
    variable, _, tag = argument.partition("=")
    assert stages == [f"{stages[0].partition(':')[0]}:${{{variable}}}"] * 2 and len(parts(tag)) >= 2, "pinned"
    installs = [rest for word, rest in lines if word == "RUN" and "pip install" in rest]
    assert any("--require-hashes --no-deps --only-binary :all:" in rest for rest in installs)
    users = [rest for word, rest in lines if word == "USER"]
    assert users and users[-1] not in {"root", "0"}
    sources = [part for word, rest in lines if word == "COPY" and "--from" not in rest for part in rest.split()[:-1]]
    assert [part for part in sources if not part.startswith("--") and not (ROOT / part).exists()] == []


@pytest.mark.parametrize("name", DOCKERFILES)
def test_what_an_image_copies_is_let_through(name: str) -> None:
    allowed = [line[1:] for line in (DEPLOY / f"{name}.dockerignore").read_text().splitlines() if line.startswith("!")]
    for word, rest in instructions(name):
        if word == "COPY" and "--from" not in rest:
            for source in (part for part in rest.split()[:-1] if not part.startswith("--")):
                assert any(source == path or source.startswith(f"{path}/") for path in allowed), source


# -- Patroni -----------------------------------------------------------------------------------------------------------

DYNAMIC = PATRONI["bootstrap"]["dcs"]
WANTED: dict[str, object] = {
    "synchronous_mode": True, "synchronous_mode_strict": True, "synchronous_node_count": 1, "primary_start_timeout": 0,
}  # fmt: skip
PARAMETERS: dict[str, object] = {
    "synchronous_commit": "on", "fsync": "on", "full_page_writes": "on", "wal_log_hints": "on",
    "password_encryption": "scram-sha-256", "hot_standby_feedback": "off",
}  # fmt: skip


def test_a_fail_over_loses_nothing() -> None:
    assert {name: DYNAMIC[name] for name in WANTED} == WANTED
    assert DYNAMIC["primary_stop_timeout"] > 0
    assert DYNAMIC["loop_wait"] + 2 * DYNAMIC["retry_timeout"] <= DYNAMIC["ttl"] and DYNAMIC["ttl"] >= 20
    assert DYNAMIC["postgresql"]["use_pg_rewind"] is True
    found = DYNAMIC["postgresql"]["parameters"]
    assert {name: found[name] for name in PARAMETERS} == PARAMETERS
    assert "data-checksums" in PATRONI["bootstrap"]["initdb"]
    assert PATRONI["watchdog"] == {"mode": "required", "device": "/dev/watchdog", "safety_margin": -1}
    assert "synchronous_standby_names" not in found, "Patroni's own business"


def test_nobody_comes_in_without_a_password() -> None:
    for line in PATRONI["postgresql"]["pg_hba"]:
        assert line.split()[-1] in {"scram-sha-256", "peer"} and "trust" not in line
        assert line.startswith(("local all postgres peer", "host ")), "peer only for who is on the machine as postgres"


# -- proxy -------------------------------------------------------------------------------------------------------------


def test_the_proxy_changes_nothing_and_sends_nothing_twice() -> None:
    proxy = read_proxy()
    lines = [line for section in proxy.values() for line in section]
    assert [
        line for line in lines if re.match(r"(http-request|reqrep|http-response) (set|add|del|replace)", line)
    ] == []
    assert [line for line in lines if line.startswith("retry-on")] == ["retry-on conn-failure"]
    assert sum(" ssl crt " in line for line in lines) == 1, "one TLS end"
    servers = [f"server {name} {name}:8420" for name in GATEWAYS]
    for section, page in (("backend deciding", "/readyz"), ("backend alive", "/livez")):
        assert [line for line in proxy[section] if line.startswith("server ")] == servers
        assert any(f"uri {page} " in line for line in proxy[section])
    assert "use_backend alive if { nbsrv(deciding) lt 1 }" in proxy["frontend clients"], "reads go on"


# -- systemd -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_is_locked_up_and_comes_back(name: str) -> None:
    unit = read_unit(name)
    for key in ("NoNewPrivileges", "PrivateDevices", "PrivateTmp", "ProtectHome", "MemoryDenyWriteExecute"):
        assert unit[f"Service.{key}"] == ["yes"]
    assert unit["Service.ProtectSystem"] == ["strict"] and unit["Service.CapabilityBoundingSet"] == [""]
    assert unit["Service.Restart"] == ["on-failure"] and unit["Service.User"] != ["root"]
    assert unit["Service.StateDirectoryMode"] == ["0700"] and unit["Service.UMask"] == ["0077"]
    assert all(key.split(".")[0] in {"Unit", "Service", "Install"} for key in unit)


def test_credentials_have_the_names_that_are_looked_for() -> None:
    units = {name: read_unit(name)["Service.LoadCredentialEncrypted"] for name in UNITS}
    names = {name: [line.split(":")[0] for line in lines] for name, lines in units.items()}
    keys = ["log.pass", "receipt.pass", "enroller.pass", "seal.pass"]
    assert names == {UNITS[0]: [*keys, PASSWORD_CREDENTIAL], UNITS[1]: ["witness.pass"]}


# -- settings, secrets -------------------------------------------------------------------------------------------------


def example() -> Settings:
    return settings_from(json.loads((DEPLOY / "tallystick.json").read_text("utf-8")), "deploy/tallystick.json")


def test_the_example_of_settings_is_valid_and_names_every_server() -> None:
    settings = example()
    assert settings.store == f"postgresql://tallystick@{','.join(DATABASES)}/tallystick"
    assert settings.durability == "replicated" and settings.listen_port == 8420


def test_no_file_holds_a_secret() -> None:
    assert len(FILES) > 10
    for path in FILES:
        text = path.read_text("utf-8")
        assert not re.search(r"(?i)pass(word)?['\"]?\s*[:=]\s*['\"]?[A-Za-z0-9]{6,}['\"]?$", text, re.MULTILINE), (
            path.name
        )
        assert not re.search(r"://[^/\s:@]+:[^/\s@]+@", text), path.name
        assert "PRIVATE KEY" not in text, path.name


def test_secrets_beside_the_file_are_not_committed() -> None:
    ignored = subprocess.run(
        ["git", "check-ignore", "-q", "deploy/secrets/owner.pass"], cwd=ROOT, check=False, capture_output=True
    )
    assert ignored.returncode == 0 or not (ROOT / ".git").exists()
    assert "secrets/" in (DEPLOY / ".gitignore").read_text("utf-8").splitlines()


@pytest.mark.parametrize("name", ["patroni/start", "patroni/roles"])
def test_a_script_is_executable_and_a_script(name: str) -> None:
    path = Path(DEPLOY / name)
    assert path.stat().st_mode & 0o111 == 0o111
    assert subprocess.run(["sh", "-n", str(path)], check=False).returncode == 0
