"""Verdicts about cases on an engine, by comparison with ONNX Runtime."""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import onnxruntime as ort

import coexec
from coexec.cache import Cache
from coexec.engines.base import OpenEngine
from coexec.engines.detect import usable_cores
from coexec.engines.registry import open_devices
from coexec.errors import CoexecError, first_line
from coexec.model.load import load
from coexec.ort import OrtSession
from tests.helpers.campaign.comparing import Case, Run, difference
from tests.helpers.campaign.operators import probe
from tests.helpers.campaign.probe import Array, Probe, model_of


def _words(engine: str, cores: Sequence[int]) -> dict[str, Any]:
    """Arguments of a session that uses this engine."""
    if engine == "onnxruntime":
        return {"devices": [f"cpu:{core}" for core in cores], "planner": "heft"}
    together = ",".join(map(str, cores))
    return {"devices": [f"cpu:{together}/{engine}"], "planner": "single"}


SETTINGS = ("onnxruntime", "cpp", "openvino")
"""Engines that a campaign can test."""


@dataclass(frozen=True)
class Verdict:
    """The outcome of a case."""

    index: int
    outcome: str
    """"right", "refused", "wrong", "raw exception", "timeout", "died" or "without ONNX Runtime"."""
    kind: str = ""
    """The operator."""
    why: str = ""
    what: str = ""
    """The case as text."""


class Reference:
    """ONNX Runtime's own outputs for a probe."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self.refusal: Exception | None = None
        try:
            self._session = OrtSession(model_of([probe]), quiet(), ["CPUExecutionProvider"])
        except Exception as error:
            self.refusal = error

    def run(self, feeds: Mapping[str, Array]) -> Sequence[Any]:
        outputs: Sequence[Any] = self._session.run(self.probe.results, feeds)
        return outputs

    @cached_property
    def answers(self) -> list[Sequence[Any] | Exception]:
        """The outputs, or the exception, for each set of feeds."""
        return [self._answer(number) for number in range(self.probe.sets)]

    def _answer(self, number: int) -> Sequence[Any] | Exception:
        if self.refusal is not None:
            return self.refusal
        return answer_of(self.run, self.probe.feeds(number))

    @property
    def raises(self) -> bool:
        return any(isinstance(answer, Exception) for answer in self.answers)


def answer_of(run: Run, feeds: Mapping[str, Array]) -> Sequence[Any] | Exception:
    """The outputs for these feeds, or the exception that ``run`` raises."""
    try:
        return run(feeds)
    except Exception as error:
        return error


def quiet(threads: int = 1) -> ort.SessionOptions:
    """Options of a session that logs no warnings.

    Args:
        threads: number of threads; 0 is ONNX Runtime's default.
    """
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    return options


def verdicts(
    engine: str,
    seed: int,
    indices: Sequence[int],
    batch: int,
    cores: Sequence[int] | None = None,
    cache: Cache | None = None,
) -> Iterator[Any]:
    """Judge these operators. Yields, for each model, a list of the numbers of its cases and then
    their verdicts.

    Args:
        batch: number of independent operators in a model.
        cores: cores to compute on; by default the first two.
        cache: the cache; by default the user's cache.
    """
    warnings.simplefilter("ignore")
    ort.set_default_logger_severity(4)
    judge = _Judge(engine, cores or usable_cores()[:2], cache)
    for chosen in _of_one_opset(seed, indices, batch):
        yield [p.index for p in chosen]
        yield from judge.batch(chosen)


def _of_one_opset(seed: int, indices: Sequence[int], batch: int) -> Iterable[list[Probe]]:
    """Cases in groups of at most ``batch`` cases of one opset."""
    waiting: dict[int, list[Probe]] = {}
    for index in indices:
        case = probe(seed, index)
        group = waiting.setdefault(case.opset, [])
        group.append(case)
        if len(group) >= batch:
            yield waiting.pop(case.opset)
    yield from waiting.values()


class _Judge:
    """Comparison of sessions of one engine with ONNX Runtime."""

    def __init__(self, engine: str, cores: Sequence[int], cache: Cache | None) -> None:
        self._words = _words(engine, cores) | {"cache": cache}
        self._device: OpenEngine | None = None
        if engine != "onnxruntime":
            self._device = open_devices(self._words["devices"])[0].engine

    def batch(self, probes: Sequence[Probe]) -> Iterator[Verdict]:
        """Verdicts about ``probes``. They run together in one model if possible. A probe that then
        differs, is refused or raises is judged again in a model of its own."""
        references = {p.index: Reference(p) for p in probes}
        alone = {p.index for p in probes if references[p.index].raises}
        together = [p for p in probes if p.index not in alone]
        if len(together) > 1:
            alone |= self._refused(together)
            together = [p for p in together if p.index not in alone]
        if len(together) > 1:
            alone |= self._differing(together, references)
        else:
            alone |= {p.index for p in together}
        for case in probes:
            if case.index in alone:
                yield self._alone(case, references[case.index])
            else:
                yield Verdict(case.index, "right", case.op_type)

    def _refused(self, probes: Sequence[Probe]) -> set[int]:
        """The numbers of the probes that the engine refuses by its `why_not`."""
        if self._device is None:
            return set()
        try:
            graph = load(model_of(probes)).graph
        except CoexecError:
            return {p.index for p in probes}
        names: set[str] = set()
        for task in graph.tasks:
            if self._device.why_not(task, graph.tensors) is not None:
                names.update(name for op in task.operators for name in (*op.inputs, *op.outputs))
        owners = {name.partition("_")[0] for name in names}
        return {p.index for p in probes if f"p{p.index}" in owners}

    def _differing(self, probes: Sequence[Probe], references: Mapping[int, Reference]) -> set[int]:
        """The numbers of the probes whose outputs are not right in a model with the others."""
        wrong: set[int] = set()
        names = [name for p in probes for name in p.results]
        try:
            with coexec.InferenceSession(model_of(probes), background=False, **self._words) as own:
                if own.degraded is not None:
                    return {p.index for p in probes}
                for number in range(max(p.sets for p in probes)):
                    feeds = {k: v for p in probes for k, v in p.feeds(number).items()}
                    outputs = dict(zip(names, own.run(names, feeds), strict=True))
                    for p in probes:
                        which = number % p.sets
                        answer = [outputs[name] for name in p.results]
                        if _why(p, which, references[p.index], answer) is not None:
                            wrong.add(p.index)
        except Exception:  # each probe is judged alone, which shows the one that fails
            return {p.index for p in probes}
        return wrong

    def _alone(self, case: Probe, reference: Reference) -> Verdict:
        """The verdict about a model with only this operator."""

        def say(outcome: str, why: str = "") -> Verdict:
            return Verdict(case.index, outcome, case.op_type, why, str(case))

        try:
            own = coexec.InferenceSession(model_of([case]), background=False, **self._words)
        except CoexecError as error:
            return say(*_of_refusal(error, reference))
        except Exception as error:
            return say("raw exception", f"opened: {type(error).__name__}: {error}")
        with own:
            if own.degraded is not None:
                return say("refused", f"degraded: {own.degraded}")
            for number in range(case.sets):
                right = reference.answers[number]
                outcome = of_run(own, case.results, case, number, right, reference.run)
                if outcome is not None:
                    return say(*outcome)
        return say("right")


def _of_refusal(error: CoexecError, reference: Reference) -> tuple[str, str]:
    """The outcome if a session cannot be opened. The error must have one line, and must be of ONNX
    Runtime's class if ONNX Runtime cannot open the model either."""
    if "\n" in str(error) or "Traceback" in str(error):
        return "traceback", str(error)
    if reference.refusal is None:
        return "refused", first_line(error)
    if not isinstance(error, type(reference.refusal)):
        return "wrong", f"{type(error).__name__} is no {_name(reference.refusal)}: {error}"
    return "right", ""


def of_run(
    own: coexec.InferenceSession,
    names: Sequence[str] | None,
    case: Case,
    number: int,
    right: Sequence[Any] | Exception,
    reference: Run,
) -> tuple[str, str] | None:
    """Outcome and reason if the outputs for a set of feeds are not right; otherwise None.

    Args:
        names: names of the outputs.
        right: ONNX Runtime's outputs for this set, or its exception.
        reference: returns ONNX Runtime's outputs for other feeds.
    """
    try:
        outputs = own.run(names, case.feeds(number))
    except CoexecError as error:
        if "\n" in str(error) or "Traceback" in str(error):
            return "traceback", f"feeds {number}: {error}"
        if not isinstance(right, Exception):
            return "wrong", f"feeds {number}: raises {type(error).__name__}: {error}"
        if not isinstance(error, type(right)):
            return "wrong", f"feeds {number}: {type(error).__name__} is no {_name(right)}: {error}"
        return None
    except Exception as error:
        return "raw exception", f"feeds {number}: {type(error).__name__}: {error}"
    if isinstance(right, Exception):
        answer = f"answers where ONNX Runtime raises {_name(right)}: {first_line(right)}"
        return "wrong", f"feeds {number}: {answer}"
    why = difference(case, number, right, outputs, reference)
    return None if why is None else ("wrong", why)


def _why(case: Probe, number: int, reference: Reference, found: Sequence[Any]) -> str | None:
    right = reference.answers[number]
    assert not isinstance(right, Exception)
    return difference(case, number, right, found, reference.run)


def _name(error: Exception) -> str:
    return type(error).__name__
