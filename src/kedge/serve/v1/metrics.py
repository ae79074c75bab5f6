"""Metrics for Prometheus: requests, seconds, refusals, images labelled, streams."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.types import Scope

CONTENT_TYPE = CONTENT_TYPE_LATEST
NO_ROUTE = "none"  # a client may ask for any path; each would be a series of its own


class Metrics:
    """The numbers of one server. It is told of every request: see `guard.Watch`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "kedge_requests", "Requests by route and status.", ["route", "method", "status"], registry=self.registry
        )
        self._seconds = Histogram(
            "kedge_request_seconds", "Seconds until the answer was complete.", ["route"], registry=self.registry
        )
        self._refused = Counter("kedge_refused", "Requests that the guard refused.", ["kind"], registry=self.registry)
        self.images = Counter("kedge_images_labelled", "Images labelled.", registry=self.registry)
        self.streams = Gauge("kedge_streams", "Streams on disk.", registry=self.registry)

    def answered(self, scope: Scope, status: int, seconds: float) -> None:
        """Count an answer."""
        route = getattr(scope.get("route"), "path", NO_ROUTE)
        method = scope["method"] if route != NO_ROUTE and scope["method"] in METHODS else "other"
        self._requests.labels(route, method, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def refused(self, kind: str) -> None:
        """Count a refusal."""
        self._refused.labels(kind).inc()

    def text(self) -> bytes:
        """All numbers in Prometheus' text format."""
        return generate_latest(self.registry)


METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
