"""Counters and times of a server, for Prometheus and for Triton's statistics extension."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

Phase = Literal["read", "queue", "compute", "write"]
_LAST = "coexec_last_request_timestamp_seconds"
_BUCKETS_S = tuple(m * 10**e for e in range(-4, 2) for m in (1, 2, 5))
"""Upper bounds of the histograms, from 0.1 ms to 50 s."""
_STATISTICS: Mapping[str, Phase] = {
    "queue": "queue",
    "compute_input": "read",
    "compute_infer": "compute",
    "compute_output": "write",
}
"""The phase that each duration of the statistics extension is about."""


class Metrics:
    """Counters and times of inference requests, by model. Each server has a registry of its own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests_s = Histogram(
            "coexec_request_seconds",
            "Seconds of inference requests, by the status of the answer. 499: the client has "
            "disconnected.",
            ["model", "status"],
            buckets=_BUCKETS_S,
            registry=self._registry,
        )
        self._phases_s = Histogram(
            "coexec_phase_seconds",
            "Seconds of the phases of inference requests: read the body, wait in the queue, "
            "compute, write the answer.",
            ["model", "phase"],
            buckets=_BUCKETS_S,
            registry=self._registry,
        )
        self._bytes = Counter(
            "coexec_body_bytes",
            "Bytes of bodies, as sent: of requests (in), and of answers (out).",
            ["model", "direction"],
            registry=self._registry,
        )
        self._queue = self._gauge("coexec_queue_length", "Requests that wait for a credit.")
        self._last_s = self._gauge(_LAST, "Time of the last inference request.")

    def _gauge(self, name: str, meaning: str) -> Gauge:
        return Gauge(name, meaning, ["model"], registry=self._registry)

    def count(
        self, model: str, status: int, duration_s: float, bytes_in: int, bytes_out: int
    ) -> None:
        """Count an inference request that has ended."""
        self._requests_s.labels(model, status).observe(duration_s)
        self._bytes.labels(model, "in").inc(bytes_in)
        self._bytes.labels(model, "out").inc(bytes_out)
        self._last_s.labels(model).set_to_current_time()

    @contextmanager
    def phase(self, model: str, phase: Phase) -> Iterator[None]:
        """Context that is a phase of a request. It counts unless it raises."""
        start_s = time.perf_counter()
        yield
        self._phases_s.labels(model, phase).observe(time.perf_counter() - start_s)

    def text(self, waiting: Mapping[str, int]) -> bytes:
        """All metrics in the text format of Prometheus.

        Args:
            waiting: number of requests in the queue of each model.
        """
        for model, count in waiting.items():
            self._queue.labels(model).set(count)
        return generate_latest(self._registry)

    def statistics(self, model: str, version: str) -> dict[str, Any]:
        """A model's statistics as the statistics extension names them. No request is a batch of
        several here, so an inference is a request."""
        by_status = _durations(self._requests_s, model, "status")
        by_phase = _durations(self._phases_s, model, "phase")
        success = by_status.pop("200", (0, 0.0))
        fail = sum(n for n, _ in by_status.values()), sum(s for _, s in by_status.values())
        compute = by_phase.get("compute", (0, 0.0))
        phases = {name: by_phase.get(of, (0, 0.0)) for name, of in _STATISTICS.items()}
        durations = {"success": success, "fail": fail, **phases, "cache_hit": (0, 0.0)}
        last_s = self._registry.get_sample_value(_LAST, {"model": model})
        return {
            "name": model,
            "version": version,
            "last_inference": int(1000 * (last_s or 0)),
            "inference_count": success[0],
            "execution_count": compute[0],
            "inference_stats": {
                name: {"count": count, "ns": int(1e9 * seconds)}
                for name, (count, seconds) in durations.items()
            },
            "batch_stats": [],
        }


def _durations(histogram: Histogram, model: str, label: str) -> dict[str, tuple[int, float]]:
    """Number and sum of a model's observations, by the value of ``label``."""
    found: dict[str, dict[str, float]] = {}
    for metric in histogram.collect():
        for sample in metric.samples:
            if sample.labels["model"] == model:
                found.setdefault(sample.labels[label], {})[sample.name] = sample.value
    name = next(iter(histogram.describe())).name
    return {key: (int(v[f"{name}_count"]), v[f"{name}_sum"]) for key, v in found.items()}
