"""Prometheus metrics, served on a loopback port of their own so that no proxy rule can expose them by mistake.

What each request adds is counted in plain numbers, and turned into metrics when somebody asks: the client library's own
counters lock three times per request, which nobody needs on one thread.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from aiohttp import web
from prometheus_client import CollectorRegistry, Gauge, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

SECONDS_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(slots=True)
class _Times:
    """How long the requests of one route took: their sum, and how many fell into each bucket and beyond the last."""

    seconds: float = 0.0
    counts: list[int] = field(default_factory=lambda: [0] * (len(SECONDS_BUCKETS) + 1))


class _Requests(Collector):
    """The requests that were answered, by route, status and code, and their times by route."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, int, str], int] = {}
        self.times: dict[str, _Times] = {}

    def collect(self) -> Iterable[Metric]:
        """Yield both as they are now."""
        answered = CounterMetricFamily("tallystick_requests", "Requests answered.", labels=["route", "status", "code"])
        for (route, status, code), count in self.counts.items():
            answered.add_metric([route, str(status), code], count)
        yield answered
        took = HistogramMetricFamily("tallystick_request_seconds", "Time from header to answer.", labels=["route"])
        for route, times in self.times.items():
            took.add_metric([route], _cumulative(times.counts), times.seconds)
        yield took


def _cumulative(counts: list[int]) -> list[tuple[str, float]]:
    """Return how many requests took at most each bound."""
    bounds = [*map(floatToGoString, SECONDS_BUCKETS), "+Inf"]
    return [(bound, float(sum(counts[: at + 1]))) for at, bound in enumerate(bounds)]


class _Counted(Collector):
    """A counter that somebody else keeps."""

    def __init__(self, name: str, text: str, value: Callable[[], float]) -> None:
        self._name, self._text, self._value = name, text, value

    def collect(self) -> Iterable[Metric]:
        """Yield the figure as it is now."""
        yield CounterMetricFamily(self._name, self._text, value=self._value())


class _Labelled(Collector):
    """Figures that somebody else keeps, by one label: counters, or gauges."""

    def __init__(
        self,
        family: type[CounterMetricFamily] | type[GaugeMetricFamily],
        name: str,
        text: str,
        label: str,
        values: Callable[[], Mapping[str, float]],
    ) -> None:
        self._family, self._name, self._text, self._label, self._values = family, name, text, label, values

    def collect(self) -> Iterable[Metric]:
        """Yield the figures as they are now."""
        counted = self._family(self._name, self._text, labels=[self._label])
        for label, value in self._values().items():
            counted.add_metric([label], value)
        yield counted


class Metrics:
    """What the door counts. Labels are names from our tables, never anything a client sent."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = _Requests()
        self.registry.register(self._requests)

    def observe(self, route: str, status: int, code: str, seconds: float) -> None:
        """Count one answered request; on the event loop's thread only."""
        requests, row = self._requests, (route, status, code)
        requests.counts[row] = requests.counts.get(row, 0) + 1
        times = requests.times.get(route)
        if times is None:
            times = requests.times[route] = _Times()
        times.seconds += seconds
        times.counts[bisect_left(SECONDS_BUCKETS, seconds)] += 1

    def gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Offer `value()`, read at each scrape, as the gauge `tallystick_<name>`."""
        Gauge(f"tallystick_{name}", text, registry=self.registry).set_function(value)

    def counter(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Offer `value()`, a figure that another room counts and that never falls, as `tallystick_<name>_total`."""
        self.registry.register(_Counted(f"tallystick_{name}", text, value))

    def labelled(self, name: str, text: str, label: str, values: Callable[[], Mapping[str, float]]) -> None:
        """Offer `values()`, figures that never fall, as `tallystick_<name>_total{<label>=…}`."""
        self.registry.register(_Labelled(CounterMetricFamily, f"tallystick_{name}", text, label, values))

    def labelled_gauge(self, name: str, text: str, label: str, values: Callable[[], Mapping[str, float]]) -> None:
        """Offer `values()`, read at each scrape, as the gauges `tallystick_<name>{<label>=…}`."""
        self.registry.register(_Labelled(GaugeMetricFamily, f"tallystick_{name}", text, label, values))

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer `GET /metrics` on the metrics port."""
        if request.method != "GET" or request.raw_path != "/metrics":
            return web.Response(status=404, headers={"Server": "tallystick"})
        body = generate_latest(self.registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE, "Server": "tallystick"})
