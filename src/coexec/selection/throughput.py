"""mode="throughput": many requests at once, each on a device of its own.

With a plan, all devices work on one request, which has a short latency. If many requests come at
once, it is often better that each device runs whole requests, because no device waits for another.
The devices, or the engine's own session if it is as good, are chosen by running: more threads than
the machine has cores send requests in a loop, and the most requests per second win.
"""

import json
import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import cached_property, partial
from typing import Any

from coexec.arrays import Array
from coexec.cache import Entry
from coexec.engines import detect
from coexec.engines.names import whole_cpu
from coexec.engines.registry import installed
from coexec.errors import (
    CoexecError,
    DeviceError,
    ExecutionError,
    InfeasibleError,
    PlanError,
    StoreError,
)
from coexec.keys import digest
from coexec.profiling.activity import undisturbed
from coexec.runtime.pool import Pool
from coexec.runtime.runner import Runner
from coexec.selection.comparison import ReferenceAnswers, why_not
from coexec.selection.configurations import Configuration, configurations
from coexec.selection.opened_model import OpenedModel
from coexec.selection.planning_context import PlanningContext, opened_cache
from coexec.selection.prepared import Candidate, Prepared
from coexec.selection.quiet_moment import Rest
from coexec.selection.rules import Rules
from coexec.selection.settings import Settings

__all__ = ["Throughput", "requests_per_s", "started"]


def started(prepared: Prepared) -> Runner:
    """A runner for a plan and the plans beside it, which answer requests at the same time."""
    if not prepared.beside:
        return prepared.work.start(prepared)
    with ExitStack() as stack:
        runners = [
            stack.enter_context(plan.work.start(plan)) for plan in (prepared, *prepared.beside)
        ]
        stack.pop_all()
    return Pool(runners)


class Throughput:
    """Chooses devices for one model; an earlier choice comes from the cache."""

    def __init__(self, source: Any, settings: Settings) -> None:
        """
        Raises:
            DeviceError: a device that does not exist.
        """
        self._source, self._settings = source, settings
        self._cache = opened_cache(settings.cache)
        self._whole = self._open(settings.devices[0] if settings.devices else whole_cpu())

    @property
    def given(self) -> OpenedModel:
        """The model."""
        return self._whole.given

    def _open(self, name: str) -> PlanningContext:
        settings = replace(self._settings, devices=[name], cache=self._cache)
        return PlanningContext(self._source, settings)

    @cached_property
    def _key(self) -> str:
        of = self._settings
        machine = (of.devices, detect.clusters(), self._whole.fingerprint, installed())
        return digest("throughput", self.given.digest, machine, sorted(of.engine_options.items()))

    @cached_property
    def known(self) -> Prepared | None:
        """The earlier choice, from the cache; None if there is none."""
        entry = None if self._settings.fresh else self._cache.find("choices", self._key)
        if entry is None:
            return None
        try:
            rows = json.loads(entry.files["choice.json"])["candidates"]
            ranked = tuple(Candidate(**(r | {"devices": tuple(r["devices"])})) for r in rows)
            return replace(self._prepared(ranked[0].devices), candidates=ranked)
        except (ValueError, KeyError, TypeError, IndexError, PlanError, StoreError, DeviceError):
            return None

    def _prepared(self, names: Configuration) -> Prepared:
        """Plans that run the whole model on each single device, beside each other.

        Raises:
            CoexecError: a device cannot run the model.
        """
        first, *beside = [self._open(name).prepared_by("single", {}) for name in names]
        return replace(first, beside=tuple(beside))

    def choose(self) -> Prepared:
        """The plans of the configuration that answers the most requests per second.

        Raises:
            InfeasibleError: no configuration runs the model.
            ExecutionError: the outputs of no configuration agree with ONNX Runtime's.
            CoexecError: the model cannot be loaded.
        """
        if self.known is not None:
            return self.known
        model = self._whole.model
        able, refused = self._able()
        rates: dict[Configuration, list[float]] = {}
        for feeds in model.candidates() if len(able) > 1 else ():
            rates, failed = self._race(able, feeds)
            if rates:
                refused |= failed
                break
        ranked = _ranked(list(rates or able), rates, self._settings.rules)
        refused |= self._unlike(able, ranked)
        losers = [Candidate(n, "single", None, refused=text) for n, text in refused.items()]
        ranked = [names for names in ranked if names not in refused]
        rows = [
            Candidate(names, "single", None, per_s=statistics.median(rates[names]))
            if names in rates
            else Candidate(names, "single", None)
            for names in ranked
        ]
        return self._kept(able[ranked[0]], [*rows, *losers])

    def _unlike(
        self, able: Mapping[Configuration, Prepared], ranked: Sequence[Configuration]
    ) -> dict[Configuration, str]:
        """Reasons against the configurations before the first one that agrees with ONNX Runtime.

        Raises:
            ExecutionError: no configuration agrees.
        """
        reference = ReferenceAnswers(self._whole)
        reasons_against: dict[Configuration, str] = {}
        for names in ranked:
            reason = why_not(able[names], reference)
            if reason is None:
                return reasons_against
            reasons_against[names] = reason
        reasons = "; ".join(f"{'+'.join(names)}: {text}" for names, text in reasons_against.items())
        raise ExecutionError(f"no plan may answer: {reasons}")

    def _able(self) -> tuple[dict[Configuration, Prepared], dict[Configuration, str]]:
        """The configurations that run the model, and why the others do not.

        Raises:
            InfeasibleError: no configuration runs the model.
        """
        able: dict[Configuration, Prepared] = {}
        refused: dict[Configuration, str] = {}
        for names in configurations(self._settings.devices, self._settings.rules):
            try:
                able[names] = self._prepared(names)
            except CoexecError as error:
                refused[names] = str(error)
        if not able:
            reasons = "; ".join(f"{'+'.join(names)}: {text}" for names, text in refused.items())
            raise InfeasibleError(
                f"no configuration of devices runs {self._whole.graph.name!r}: {reasons}"
            )
        return able, refused

    def _race(
        self, able: Mapping[Configuration, Prepared], feeds: Mapping[str, Array]
    ) -> tuple[dict[Configuration, list[float]], dict[Configuration, str]]:
        """Requests per second in each round, and why some configurations did not run."""
        failed: dict[Configuration, str] = {}
        rates: dict[Configuration, list[float]] = {}
        rules, pause = self._settings.rules, Rest()
        with ExitStack() as stack:
            runners: dict[Configuration, Runner] = {}
            for names, prepared in able.items():
                try:
                    runners[names] = stack.enter_context(started(prepared))
                    requests_per_s(runners[names], feeds, 0.0)
                except CoexecError as error:
                    failed[names] = str(error)
                    runners.pop(names, None)
            for number in range(rules.parallel_rounds):
                order = list(runners)
                for names in order[number % len(order) :] + order[: number % len(order)]:
                    pause.until_idle()
                    turn = partial(requests_per_s, runners[names], feeds, rules.parallel_turn_s)
                    rates.setdefault(names, []).append(undisturbed(turn, self._settings.quiet))
        return rates, failed

    def _kept(self, prepared: Prepared, rows: Sequence[Candidate]) -> Prepared:
        data = json.dumps({"candidates": [asdict(row) for row in rows]})
        self._cache.add("choices", self._key, Entry({"choice.json": data.encode()}))
        return replace(prepared, candidates=tuple(rows))


def requests_per_s(runner: Runner, feeds: Mapping[str, Array], seconds: float) -> float:
    """Requests per second that a runner answers if requests always wait for it.

    Args:
        seconds: how long `clients` threads send requests. Each thread sends at least one.

    Raises:
        CoexecError: a request failed.
    """
    done: list[float] = []
    failed: list[CoexecError] = []
    start_s = time.perf_counter()

    def send() -> None:
        try:
            while not failed:
                runner.run(feeds)
                done.append(time.perf_counter() - start_s)
                if done[-1] >= seconds:
                    return
        except CoexecError as error:
            failed.append(error)

    threads = [threading.Thread(target=send, daemon=True) for _ in range(clients())]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return len(done) / max(done)


def clients() -> int:
    """Number of threads that send requests in a race: more than the machine has cores."""
    return len(detect.usable_cores()) + 2


def _ranked(
    able: Sequence[Configuration],
    rates: Mapping[Configuration, Sequence[float]],
    rules: Rules,
) -> list[Configuration]:
    """Configurations, the best first. The first configuration with a single device counts as the
    best unless another one is clearly better."""
    own = next((names for names in able if len(names) == 1), able[0])
    per_s = {names: statistics.median(counted) for names, counted in rates.items()}
    ranked = sorted(able, key=lambda names: -per_s.get(names, 0.0))
    if per_s.get(ranked[0], 0.0) < rules.parallel_gain * per_s.get(own, 0.0):
        ranked.sort(key=lambda names: names != own)
    return ranked
