"""Plan files: a plan with the facts of its model, which explain why it does not fit another one."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from coexec.errors import PlanError
from coexec.graph.graph import Graph
from coexec.plan.plan import Plan

_SHOWN = 3
"""Maximum number of inputs in a message."""

Shape = tuple[int, ...]


@dataclass(frozen=True)
class ModelFacts:
    """Facts by which a user distinguishes two models. A plan is matched by `Graph.fingerprint`
    alone."""

    name: str
    inputs: Mapping[str, Shape]
    shapes: Mapping[str, Shape | int] = field(default_factory=dict)
    """Fixed sizes of inputs that the model leaves dynamic, by input or name of a dimension."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Version by package: another version may make other tasks of the same model."""

    @classmethod
    def of(
        cls,
        graph: Graph,
        shapes: Mapping[str, Any] | None = None,
        versions: Mapping[str, str] | None = None,
    ) -> Self:
        """The facts of the model that ``graph`` was made from."""
        inputs = {name: graph.tensors[name].shape for name in graph.inputs}
        return cls(graph.name, inputs, shapes or {}, versions or {})

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Inverse of ``asdict`` and JSON.

        Raises:
            ValueError, TypeError, KeyError, AttributeError: the data has another form.
        """
        return cls(
            str(data["name"]),
            {str(n): _shape(s) for n, s in data["inputs"].items()},
            {str(n): s if type(s) is int else _shape(s) for n, s in data["shapes"].items()},
            {str(n): str(v) for n, v in data["versions"].items()},
        )

    def against(self, other: Self) -> tuple[str, str] | None:
        """Texts by which a user distinguishes both; None if they look the same."""
        unlike = [
            name
            for name in {**self.inputs, **other.inputs}
            if self.inputs.get(name) != other.inputs.get(name)
        ]
        if self.name != other.name or unlike:
            return self._text(unlike), other._text(unlike)
        if self.versions != other.versions:
            return _listed(self.versions), _listed(other.versions)
        return None

    def _text(self, names: list[str]) -> str:
        shown = [
            f"{name} {list(self.inputs[name])}" if name in self.inputs else f"no {name}"
            for name in names[:_SHOWN]
        ]
        return f"{self.name!r}" + (f" with {', '.join(shown)}" if shown else "")

    def options(self, other: Self) -> str:
        """The options of the command line that fix the sizes of the inputs that differ from those
        of ``other``; each begins with a space."""
        unlike = {n: s for n, s in self.inputs.items() if other.inputs.get(n, s) != s}
        return "".join(f" --shape {n}={','.join(map(str, s))}" for n, s in unlike.items())


@dataclass(frozen=True)
class PlanFile:
    """A plan from a file, or one to be written into a file."""

    plan: Plan
    made_for: ModelFacts | None = None
    """None if the file does not state it."""
    path: str = ""
    """File from which the plan was read; empty if it was not read from a file."""

    @property
    def title(self) -> str:
        """Name of the plan in messages."""
        return f"the plan {self.path!r}" if self.path else "the plan"

    @property
    def shapes(self) -> Mapping[str, Shape | int]:
        """Sizes that the plan fixes for dynamic inputs of its model; empty if the file has none."""
        return {} if self.made_for is None else self.made_for.shapes

    def to_json(self) -> str:
        """JSON text that a person can read and edit; `from_json` reads it back."""
        data = json.loads(self.plan.to_json())
        order = data.pop("order")
        facts = {} if self.made_for is None else {"made_for": asdict(self.made_for)}
        return json.dumps({**data, **facts, "order": order}, indent=1)

    @classmethod
    def from_json(cls, text: str, path: str = "") -> Self:
        """Inverse of `to_json`.

        Raises:
            PlanError: the text is no plan, or has another format.
        """
        title = repr(path) if path else "the plan"
        try:
            plan = Plan.from_json(text)
            facts = json.loads(text).get("made_for")
            return cls(plan, None if facts is None else ModelFacts.from_json(facts), path)
        except PlanError as error:
            raise PlanError(f"{title}: {error}") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise PlanError(
                f"{title}: this is not a plan: made_for has {type(error).__name__}: "
                f"{error}; make one with coexec plan MODEL "
                f"--output plan.json"
            ) from None

    def require(self, graph: Graph, versions: Mapping[str, str]) -> None:
        """Refuse a plan of another model, or of other shapes.

        Args:
            versions: versions of the packages that have made ``graph``.

        Raises:
            PlanError: the plan was made for another model; the message says what differs.
        """
        if self.plan.model == graph.fingerprint:
            return
        here = ModelFacts.of(graph, versions=versions)
        texts = None if self.made_for is None else self.made_for.against(here)
        if texts is None:
            texts = (f"tasks {self.plan.model}", f"{graph.name!r} has tasks {graph.fingerprint}")
        own, new = "", ""
        if self.made_for is not None and self.made_for.shapes and self.made_for.name == here.name:
            own, new = self.made_for.options(here), here.options(self.made_for)
        raise PlanError(
            f"{self.title} was made for another model or other shapes: for {texts[0]}, and here: "
            f"{texts[1]}; give it the model and the shapes that it was made for{own}, or make a "
            f"new one with coexec plan MODEL{new} --output new.plan.json"
        )


def _shape(sizes: Any) -> Shape:
    if not isinstance(sizes, list) or any(type(size) is not int for size in sizes):
        raise TypeError(f"{sizes!r} is not a list of whole numbers")
    return tuple(sizes)


def _listed(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())
