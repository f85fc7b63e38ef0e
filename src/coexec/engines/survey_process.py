"""The process that lists processors. Before each step that may crash, it reports the engine.

python -m coexec.engines.survey_process
"""

from collections.abc import Callable
from contextlib import suppress

from coexec import processes
from coexec.engines.base import Engine
from coexec.engines.registry import broken, engine_names, load_engine, processors
from coexec.engines.survey import Survey
from coexec.errors import DeviceError


def _announced(
    step: Callable[[Engine], object], parent: processes.Parent, names: list[str]
) -> None:
    for name in names:
        parent.send(name)
        with suppress(Exception):  # `broken` and `processors` give the reason
            step(load_engine(name))


def _list(engine: Engine) -> None:
    for kind in () if engine.pretends else engine.kinds:
        with suppress(DeviceError):
            list(engine.processors(kind))


def main() -> None:
    parent = processes.Parent()
    without = parent.receive()
    names = [name for name in engine_names() if name not in without]
    _announced(lambda engine: None, parent, names)
    _announced(lambda engine: engine.preload(), parent, names)
    _announced(_list, parent, names)
    parent.send("")  # from here on, what may crash runs in further processes
    tried = processors(without=without, begin=parent.send)
    parent.send("")
    parent.send(Survey(tuple(tried), broken(without)))


if __name__ == "__main__":
    main()
