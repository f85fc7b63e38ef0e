"""A model as it was given: what it is simplified to, and what ONNX Runtime makes of it."""

import json
import os
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coexec.arguments import check_feeds
from coexec.arrays import Array
from coexec.cache import Cache, Entry
from coexec.errors import AssumedWarning, ModelError, StoreError
from coexec.frontend import FORM
from coexec.frontend.declared import (
    Declared,
    canonical,
    declared_inputs,
    is_open,
    known_inputs,
    options_of,
)
from coexec.frontend.digest import Shapes, digest_of
from coexec.keys import digest

if TYPE_CHECKING:  # importing ONNX takes longer than starting from the cache
    import onnx_ir as ir

    from coexec.frontend.model import Model
    from coexec.ir.graph import Graph
    from coexec.workbench.settings import Settings

__all__ = ["ZOO", "GivenModel"]

ZOO = "zoo:"
_TRIES = 3
"""Times that a model is read whose files change meanwhile."""


class GivenModel:
    """A model with what the user fixes of it. It is read when something of it is asked for."""

    def __init__(
        self, source: Any, shapes: Shapes, cache: Cache, values: Mapping[str, Any] | None = None,
        examples: Mapping[str, Any] | None = None, *, assume: bool = False,
    ) -> None:  # fmt: skip
        """
        Args:
            source: path, "zoo:NAME", serialized bytes, ``onnx.ModelProto`` or ``onnx_ir.Model``.
            shapes: by input, or sizes by name of a dimension, for what the model leaves dynamic.
            cache: where the simplified model is kept.
            values: by input, for those that become constants.
            examples: inputs that suit it, where made-up ones may not. They fix what shapes are
                open.
            assume: find sizes for what is open then, and warn of them.
        """
        self.source = source
        self._values, self._cache, self._assume = values or {}, cache, assume
        self._examples = {n: a for n, a in (examples or {}).items() if n not in self._values}
        self._given_shapes = shapes

    @classmethod
    def of(cls, source: Any, settings: "Settings", cache: Cache) -> "GivenModel":
        """The model with what the settings fix of it."""
        return cls(source, settings.shapes, cache, settings.values, settings.examples,
                   assume=settings.assume)  # fmt: skip

    @cached_property
    def shapes(self) -> Shapes:
        """What is fixed of the inputs that the model leaves dynamic, in one spelling for all ways
        to say the same."""
        of_zoo = isinstance(self.source, str) and self.source.startswith(ZOO)
        if of_zoo or not (self._given_shapes or self._examples or self._assume):
            return self._given_shapes
        try:
            declared = declared_inputs(self.source, self._cache)
        except ModelError:  # whoever reads the model reports it
            return self._given_shapes
        known = canonical({**self._example_shapes(declared), **self._given_shapes}, declared)
        fixed = {*known, *self._values}
        left_open = any(is_open(dims) for name, dims in declared.items() if name not in fixed)
        return {**known, **self._assumed(known)} if self._assume and left_open else known

    def _example_shapes(self, declared: Declared) -> Shapes:
        """Of the examples for inputs that are open; whether all examples fit, `model` says."""
        found = {}
        for name, array in self._examples.items():
            dims = declared.get(name, ())
            if dims is None or (len(dims) == np.ndim(array) and is_open(dims)):
                found[name] = np.shape(array)
        return found

    def _assumed(self, known: Shapes) -> Shapes:
        """Shapes of the inputs that are open, found once for a model."""
        key = digest_of(self.source, known, self._values, self._cache)
        entry = self._cache.find("assumed", key)
        if entry is None:
            from coexec.frontend.assumed import assumed_shapes

            found = assumed_shapes(self._read(known, all_known=False))
            content = json.dumps(found).encode()
            self._cache.add("assumed", key, Entry({"shapes.json": content}), quiet=True)
        else:
            found = {n: tuple(s) for n, s in json.loads(entry.files["shapes.json"]).items()}
        if found:
            warnings.warn(f"sizes that the model leaves open: {options_of(found)}. They are the "
                          f"first usual ones with which it runs; give others in the same way, or "
                          f"--inputs FILE.npz", AssumedWarning, stacklevel=2)  # fmt: skip
        return found

    @cached_property
    def digest(self) -> str:
        """Tells this model with what is fixed from all others. The cache adds coexec's version."""
        if isinstance(self.source, str) and self.source.startswith(ZOO):
            content = digest(self.source, sorted(self.shapes.items()), sorted(self._values.items()))
        else:
            content = digest_of(self.source, self.shapes, self._values, self._cache)
        return digest(content, FORM)

    @property
    def is_told_quickly(self) -> bool:
        """Whether `digest` needs no look at the model's content."""
        from coexec.frontend.digest import is_remembered

        if isinstance(self.source, str) and self.source.startswith(ZOO):
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
        """The simplified model, checked once against the given one."""
        from coexec.frontend.load import restore, save

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
                return self._with_examples(save(model, self._cache))
        raise ModelError(f"the model {str(self.source)!r} changes while it is read; wait until "
                         f"it is written completely")  # fmt: skip

    def _with_examples(self, model: "Model") -> "Model":
        """
        Raises:
            InputError: the examples are not the model's inputs.
        """
        if not self._examples:
            return model
        wanted = {name: model.graph.tensors[name] for name in model.graph.inputs}
        return replace(model, examples=check_feeds(wanted, self._examples))

    @cached_property
    def published_graph(self) -> "Graph":
        """The tasks of the model for engines that do not rewrite it as ours do.

        That is for platforms whose engines are simulated from what was published about them.
        """
        return self._load(rewrites=False, digest=self.digest).graph

    def _load(self, **how: Any) -> "Model":
        from coexec.frontend.load import load

        return load(
            self.resolved(), shapes=self.shapes, values=self._values, name=self._name(),
            examples=self._examples, **how,
        )  # fmt: skip

    def _name(self) -> str:
        if isinstance(self.source, str | os.PathLike):
            text = os.fspath(self.source)
            return text.removeprefix(ZOO) if text.startswith(ZOO) else Path(text).stem
        return ""

    def resolved(self) -> Any:
        """The model as it was given; one of the zoo is built."""
        if isinstance(self.source, str) and self.source.startswith(ZOO):
            from coexec.zoo import build

            return build(self.source.removeprefix(ZOO))
        return self.source

    def fixed(self) -> "ir.Model":
        """The same with the shapes and values that the user fixes."""
        return self._read(self.shapes)

    def _read(self, shapes: Shapes, *, all_known: bool = True) -> "ir.Model":
        from coexec.frontend.fixed import fix
        from coexec.frontend.read import read

        model = read(self.resolved())
        fix(model, shapes, self._values, all_known=all_known)
        return model

    def for_own_session(self) -> Any:
        """What an engine's own session opens: the model as it was given. Inputs whose values are
        fixed are none any more; of shapes it takes any."""
        return self.fixed() if self._values else self.resolved()

    def onnx_runtime(self, threads: int, *, optimised: bool = True) -> Any:
        """ONNX Runtime's own session of the model as it was given, to compare with."""
        from coexec.frontend.check import plain_session

        return plain_session(self.fixed(), threads, optimised=optimised)

    def reference(self, feeds: Mapping[str, Array], *, optimised: bool = True) -> dict[str, Array]:
        """What ONNX Runtime computes for the model as it was given."""
        session = self.onnx_runtime(threads=1, optimised=optimised)
        names = [o.name for o in session.get_outputs()]
        return dict(zip(names, session.run(names, dict(feeds)), strict=True))
