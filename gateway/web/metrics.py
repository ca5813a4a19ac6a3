"""Prometheus metrics, served on a loopback port of their own so that no proxy rule can expose them by mistake."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

SECONDS_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class _Counted(Collector):
    """A counter that somebody else keeps."""

    def __init__(self, name: str, text: str, value: Callable[[], float]) -> None:
        self._name, self._text, self._value = name, text, value

    def collect(self) -> Iterable[Metric]:
        """Yield the figure as it is now."""
        yield CounterMetricFamily(self._name, self._text, value=self._value())


class Metrics:
    """What the door counts. Labels are names from our tables, never anything a client sent."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "tallystick_requests_total", "Requests answered.", ["route", "status", "code"], registry=self.registry
        )
        self._seconds = Histogram(
            "tallystick_request_seconds",
            "Time from header to answer.",
            ["route"],
            buckets=SECONDS_BUCKETS,
            registry=self.registry,
        )
        self._rows: dict[tuple[str, int, str], tuple[Counter, Histogram]] = {}

    def observe(self, route: str, status: int, code: str, seconds: float) -> None:
        """Count one answered request; the children are looked up once per row, which halves the cost."""
        row = self._rows.get((route, status, code))
        if row is None:
            row = (self._requests.labels(route, str(status), code), self._seconds.labels(route))
            self._rows[(route, status, code)] = row
        row[0].inc()
        row[1].observe(seconds)

    def gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Offer `value()`, read at each scrape, as the gauge `tallystick_<name>`."""
        Gauge(f"tallystick_{name}", text, registry=self.registry).set_function(value)

    def counter(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Offer `value()`, a figure that another room counts and that never falls, as `tallystick_<name>_total`."""
        self.registry.register(_Counted(f"tallystick_{name}", text, value))

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer `GET /metrics` on the metrics port."""
        if request.method != "GET" or request.raw_path != "/metrics":
            return web.Response(status=404, headers={"Server": "tallystick"})
        body = generate_latest(self.registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE, "Server": "tallystick"})
