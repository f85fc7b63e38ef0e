"""The latency predictor of a place, if one was trained on the same processor and engine."""

from collections.abc import Iterable

from coexec.costs.base import TrainedPredictor
from coexec.engines.base import OpenEngine
from coexec.profiling.store import ProfileStore
from coexec.research_loader import load_research


def trained_predictor(engine: OpenEngine, store: ProfileStore) -> TrainedPredictor | None:
    """The trained predictor; None if there is none for this processor and version of the engine."""
    texts = store.read_predictor(engine.device.key)
    if not texts:
        return None
    predictor: TrainedPredictor | None
    predictor = load_research("predictor.latency").predictor_of(engine, texts)
    return predictor


def untrained(engines: Iterable[OpenEngine], store: ProfileStore) -> list[str]:
    """A line for each place without a predictor: the effect on plans, and the remedy."""
    lines = []
    for engine in engines:
        if trained_predictor(engine, store) is not None:
            continue
        key, place = engine.device.key, engine.place
        other_keys = [k for k in store.trained() if f", {engine.info.name} " in k and k != key]
        beside = f" (there is one of {'; '.join(other_keys)}, this is {key})" if other_keys else ""
        lines.append(
            f"{place}: no latency predictor{beside}; parts of tasks are charged their share. "
            f"coexec profile --train --devices {place} trains one"
        )
    return lines
