"""A user's model: its source, its simplified form, and ONNX Runtime's session of it."""

import json
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coexec.arguments import check_feeds
from coexec.arrays import Array
from coexec.cache import Cache, Entry
from coexec.errors import AssumedWarning, ModelError, PlanError, StoreError, UsageError
from coexec.keys import digest
from coexec.model import FORM
from coexec.model.declared import (
    Declared,
    canonical,
    declared_inputs,
    is_open,
    known_inputs,
    options_of,
    require_fit,
)
from coexec.model.digest import Shapes, digest_of
from coexec.model.main_memory import trim_memory
from coexec.model.shape_mismatch import UnfitError
from coexec.model.values import run_session
from coexec.research_loader import resolved_model, zoo_name

if TYPE_CHECKING:  # importing ONNX takes longer than starting from the cache
    import onnx_ir as ir

    from coexec.graph.graph import Graph
    from coexec.model.model import Model
    from coexec.plan.plan_file import PlanFile
    from coexec.settings import Settings

_TRIES = 3
"""Number of times that a model is read if its files change during reading."""


class UserModel:
    """A model with the shapes and values that the user fixes. It is read on first use."""

    def __init__(
        self,
        source: Any,
        shapes: Shapes,
        cache: Cache,
        values: Mapping[str, Any] | None = None,
        examples: Mapping[str, Any] | None = None,
        *,
        assume: bool = False,
        plan: "PlanFile | None" = None,
    ) -> None:
        """
        Args:
            source: path, "zoo:NAME", serialized bytes, ``onnx.ModelProto`` or ``onnx_ir.Model``.
            shapes: shapes by input, or sizes by name of a dimension, for dynamic inputs.
            cache: cache of the simplified model.
            values: values of inputs that become constants, by input.
            examples: example inputs, for models with which made-up inputs may not run. They fix
                dynamic shapes.
            assume: whether to find sizes for shapes that are still dynamic then, with a warning.
            plan: the file that gives the shapes; None: the user gives them.
        """
        self.source = source
        self._values, self._cache, self._assume = values or {}, cache, assume
        self._examples = {n: a for n, a in (examples or {}).items() if n not in self._values}
        self._given_shapes = shapes
        self._plan = plan

    @classmethod
    def of(cls, source: Any, settings: "Settings", cache: Cache) -> "UserModel":
        """The model with the shapes and values of ``settings``."""
        plan = settings.plan
        gives_shapes = plan is not None and plan.shapes and plan.shapes == settings.shapes
        return cls(
            source,
            settings.shapes,
            cache,
            settings.values,
            settings.examples,
            assume=settings.assume,
            plan=plan if gives_shapes else None,
        )

    @cached_property
    def shapes(self) -> Shapes:
        """Fixed shapes of inputs that are dynamic in the model, in a canonical form: equal shapes
        give equal mappings."""
        of_zoo = zoo_name(self.source) is not None
        if of_zoo or not (self._given_shapes or self._examples or self._assume):
            return self._given_shapes
        try:
            declared = declared_inputs(self.source, self._cache)
        except ModelError:  # the error is raised again when the model is read
            return self._given_shapes
        with self._shapes_of_plan():
            require_fit(self._given_shapes, declared)
            shapes = canonical({**self._example_shapes(declared), **self._given_shapes}, declared)
        fixed = {*shapes, *self._values}
        left_open = any(is_open(dims) for name, dims in declared.items() if name not in fixed)
        return {**shapes, **self._assumed(shapes)} if self._assume and left_open else shapes

    def _example_shapes(self, declared: Declared) -> Shapes:
        """Shapes of the examples for dynamic inputs. `model` checks whether all examples fit."""
        shapes = {}
        for name, array in self._examples.items():
            dims = declared.get(name, ())
            if dims is None or (len(dims) == np.ndim(array) and is_open(dims)):
                shapes[name] = np.shape(array)
        return shapes

    def _assumed(self, known_shapes: Shapes) -> Shapes:
        """Shapes of the inputs that are still dynamic, found once for a model."""
        key = digest_of(self.source, known_shapes, self._values, self._cache)
        entry = self._cache.find("assumed", key)
        if entry is None:
            from coexec.model.assumed import assumed_shapes

            shapes = assumed_shapes(self._read(known_shapes, all_known=False))
            content = json.dumps(shapes).encode()
            self._cache.add("assumed", key, Entry({"shapes.json": content}), quiet=True)
        else:
            shapes = {n: tuple(s) for n, s in json.loads(entry.files["shapes.json"]).items()}
        if shapes:
            warnings.warn(
                f"sizes that the model leaves open: {options_of(shapes)}. They are the "
                f"first with which it runs, its metadata and usual sizes tried in turn; give "
                f"others in the same way, or --inputs FILE.npz",
                AssumedWarning,
                stacklevel=2,
            )
        return shapes

    @cached_property
    def digest(self) -> str:
        """Digest of the model with its fixed shapes and values, and of the passes that are left
        out. The cache adds coexec's version."""
        if zoo_name(self.source) is not None:
            content = digest(self.source, sorted(self.shapes.items()), sorted(self._values.items()))
        else:
            content = digest_of(self.source, self.shapes, self._values, self._cache)
        return digest(content, FORM)

    @property
    def has_cached_digest(self) -> bool:
        """Whether `digest` can be computed without reading the model's content."""
        from coexec.model.digest import is_remembered

        if zoo_name(self.source) is not None:
            return True
        is_path = isinstance(self.source, str | os.PathLike)
        if not is_path or not is_remembered(self.source, self._cache):
            return False
        return (
            not (self._given_shapes or self._assume)
            or known_inputs(self.source, self._cache) is not None
        )

    @cached_property
    def model(self) -> "Model":
        """The simplified model, checked once against the original."""
        from coexec.model.load import restore, save
        from coexec.model.model import forget_weights

        entry = self._cache.find("models", self.digest)
        if entry is not None:
            with suppress(StoreError):  # a weight is gone or damaged: the model is made again
                return self._with_examples(restore(entry, self._cache, self.digest, self._name()))
        for _ in range(_TRIES):
            before = self.digest
            model = self._load(check=True, digest=before)
            if isinstance(self.source, str | os.PathLike):
                del self.digest  # computed again: the files may have changed while they were read
            if self.digest == before:
                stored = save(model, self._cache)
                if stored is not model:
                    forget_weights(model.source)
                trim_memory()
                return self._with_examples(stored)
        raise ModelError(
            f"the model {str(self.source)!r} changes while it is read; wait until "
            f"it is written completely"
        )

    def _with_examples(self, model: "Model") -> "Model":
        """``model`` with the example inputs.

        Raises:
            InputError: the examples do not fit the model's inputs.
        """
        if not self._examples:
            return model
        inputs = {name: model.graph.tensors[name] for name in model.graph.inputs}
        return replace(model, examples=check_feeds(inputs, self._examples))

    @cached_property
    def published_graph(self) -> "Graph":
        """The tasks of the model without coexec's rewrites.

        For platforms whose engines are simulated from published data: these engines do not rewrite
        a model in this way.
        """
        return self._load(rewrites=False, digest=self.digest).graph

    def _load(self, **how: Any) -> "Model":
        from coexec.model.load import load

        with self._shapes_of_plan():
            return load(
                self.resolved(),
                shapes=self.shapes,
                values=self._values,
                name=self._name(),
                examples=self._examples,
                **how,
            )

    def _name(self) -> str:
        if isinstance(self.source, str | os.PathLike):
            text = os.fspath(self.source)
            zoo = zoo_name(text)
            return Path(text).stem if zoo is None else zoo
        return ""

    def resolved(self) -> Any:
        """The model from its source; a model of the zoo is built."""
        return resolved_model(self.source)

    def fixed(self) -> "ir.Model":
        """The model from its source, with the shapes and values that the user fixes."""
        return self._read(self.shapes)

    def _read(self, shapes: Shapes, *, all_known: bool = True) -> "ir.Model":
        from coexec.model.fixed import fix
        from coexec.model.read import read

        model = read(self.resolved())
        with self._shapes_of_plan():
            fix(model, shapes, self._values, all_known=all_known)
        return model

    @contextmanager
    def _shapes_of_plan(self) -> Iterator[None]:
        """Context in which the error of shapes that do not fit the model names their plan.

        Raises:
            PlanError: the shapes of the plan do not fit.
        """
        try:
            yield
        except (UsageError, ModelError) as error:
            unfit = isinstance(error, UsageError) or isinstance(error.__cause__, UnfitError)
            if not unfit or self._plan is None:
                raise
            raise PlanError(
                f"{self._plan.title} was made for another model, with "
                f"{options_of(self._plan.shapes)}: {error}"
            ) from None

    def for_own_session(self) -> Any:
        """The model for an engine's own session: the original, which takes any shapes. If the user
        fixes values, the model with all fixed values and shapes."""
        return self.fixed() if self._values else self.resolved()

    def onnx_runtime(self, threads: int, *, optimised: bool = True) -> Any:
        """ONNX Runtime's own session of the original model, for comparisons."""
        from coexec.model.model import forget_weights
        from coexec.model.reference_session import plain_session

        source = self.resolved()
        if isinstance(source, str | os.PathLike) and not (self.shapes or self._values):
            with suppress(ModelError):  # weights may lie behind a symbolic link
                return plain_session(os.fspath(source), threads, optimised=optimised)
        model = self.fixed()
        session = plain_session(model, threads, optimised=optimised)
        forget_weights(model)
        return session

    def reference(self, feeds: Mapping[str, Array], *, optimised: bool = True) -> dict[str, Array]:
        """ONNX Runtime's outputs of the original model."""

        session = self.onnx_runtime(threads=1, optimised=optimised)
        names = [o.name for o in session.get_outputs()]
        return dict(zip(names, run_session(session, names, feeds), strict=True))


def opened_cache(cache: Cache | Path | str | None) -> Cache:
    """The cache that the settings name, or a new cache in their folder."""
    return cache if isinstance(cache, Cache) else Cache(cache)
