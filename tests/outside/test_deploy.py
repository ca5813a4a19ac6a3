"""The files of `deploy/`, read by the programs they are for: HAProxy in front of two nodes, systemd, Compose."""

import http.client
import os
import re
import shutil
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.deploy.read import DEPLOY
from tests.outside.tools import need, run
from tests.system.process import free_port

PATH = "/api/v1/acp/leases?resource=repo:a%2Fb&x=%20+"


@dataclass(slots=True)
class Node:
    """Stands for a gateway: says whether it decides, and keeps what reaches it."""

    is_ready: bool = True
    seen: list[tuple[str, str, str]] = field(default_factory=list)  # method, path, Host
    port: int = 0


def serve(node: Node) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            is_probe = self.path in ("/readyz", "/livez")
            if not is_probe:
                node.seen.append((self.command, self.path, self.headers["Host"]))
            self.send_response(503 if not node.is_ready and self.path != "/livez" else 200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            """A probe resets its connection when it has its answer."""

    server = Quiet(("127.0.0.1", 0), Handler)
    node.port = server.server_port
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def haproxy() -> str:
    return need(shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin"), "HAProxy")


def eventually(is_so: Callable[[], bool]) -> None:
    """Wait for the proxy to find out; it asks once a second."""
    end_s = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < end_s
        time.sleep(0.1)


@dataclass(slots=True)
class Proxy:
    """A running HAProxy by our file, on another port and with nodes of the test behind it."""

    port: int
    nodes: tuple[Node, Node]

    def get(self, host: str = "gateway.example") -> int:
        trust = ssl.create_default_context()
        trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=10, context=trust)
        try:
            connection.request("GET", PATH, headers={"Host": host})
            return connection.getresponse().status
        except OSError:
            return 0
        finally:
            connection.close()


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[Proxy]:
    program = haproxy()
    openssl = need(shutil.which("openssl"), "openssl")
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    made = run(openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=gateway.example",
               "-keyout", str(key), "-out", str(certificate))  # fmt: skip
    assert made.returncode == 0, made.stderr
    (tmp_path / "tls.pem").write_bytes(certificate.read_bytes() + key.read_bytes())
    nodes = Node(), Node()
    servers = [serve(node) for node in nodes]
    port = free_port()
    text = (DEPLOY / "haproxy.cfg").read_text("utf-8").replace("/etc/haproxy/tls.pem", str(tmp_path / "tls.pem"))
    text = text.replace("bind :8443", f"bind 127.0.0.1:{port}")
    text = re.sub(r"gateway-([12]):8420", lambda found: f"127.0.0.1:{nodes[int(found[1]) - 1].port}", text)
    (tmp_path / "haproxy.cfg").write_text(text, "utf-8")
    process = subprocess.Popen([program, "-db", "-f", str(tmp_path / "haproxy.cfg")], stdout=subprocess.DEVNULL)
    front = Proxy(port, nodes)
    try:
        eventually(lambda: front.get() == 200)
        yield front
    finally:
        process.kill()
        process.wait()
        for server in servers:
            server.shutdown()
            server.server_close()


def test_requests_go_to_nodes_that_decide_and_to_the_others_when_none_does(proxy: Proxy) -> None:
    first, second = proxy.nodes
    assert {seen for node in proxy.nodes for seen in node.seen} == {("GET", PATH, "gateway.example")}, "as it was sent"
    first.is_ready = False
    eventually(lambda: is_left_alone(first, proxy))
    assert [proxy.get() for _ in range(8)] == [200] * 8 and not first.seen
    second.is_ready = False
    eventually(lambda: proxy.get() == 503 and bool(first.seen))  # a node's own 503, and not the proxy's
    first.is_ready = second.is_ready = True
    eventually(lambda: [proxy.get() for _ in range(4)] == [200] * 4)


def is_left_alone(node: Node, proxy: Proxy) -> bool:
    node.seen.clear()
    return [proxy.get() for _ in range(4)] == [200] * 4 and not node.seen


def test_systemd_finds_nothing_to_say_of_the_units(tmp_path: Path) -> None:
    program = need(shutil.which("systemd-analyze"), "systemd")
    instances = ("tallystick@main.service", "tallystick-witness.service")
    for instance in instances:
        name = instance.replace("@main", "@")
        text = (DEPLOY / "systemd" / name).read_text("utf-8")
        (tmp_path / instance).write_text(text.replace("/opt/tallystick/bin/tallystick", "/bin/true"), "utf-8")
    told = run(program, "verify", *(str(tmp_path / instance) for instance in instances))
    assert (told.returncode, told.stderr) == (0, "")
    for instance in instances:
        graded = run(program, "security", "--offline=true", "--threshold=20", str(tmp_path / instance))
        assert graded.returncode == 0, graded.stdout


def test_compose_reads_its_file(tmp_path: Path) -> None:
    """An older Compose knows no `name`; all else is the same to both."""
    program = shutil.which("docker-compose")
    told = run("docker", "compose", "version") if shutil.which("docker") else None
    command = ["docker", "compose"] if told and told.returncode == 0 else [need(program, "Compose")]
    text = (DEPLOY / "compose.yaml").read_text("utf-8")
    (tmp_path / "compose.yaml").write_text(re.sub(r"^name: .*$", "", text, flags=re.MULTILINE), "utf-8")
    found = run(*command, "-f", str(tmp_path / "compose.yaml"), "config", "--quiet")
    assert found.returncode == 0, found.stderr
