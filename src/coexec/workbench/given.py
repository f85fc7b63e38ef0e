"""A model as it was given: what it is simplified to, and what ONNX Runtime makes of it."""

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coexec.cache import Cache
from coexec.errors import ModelError, StoreError
from coexec.frontend import FORM
from coexec.frontend.digest import Shapes, digest_of
from coexec.frontend.module import Array

if TYPE_CHECKING:  # importing ONNX takes longer than starting from the cache
    import onnx_ir as ir

    from coexec.frontend.model import Model
    from coexec.ir.graph import Graph

__all__ = ["ZOO", "GivenModel"]

ZOO = "zoo:"
_TRIES = 3
"""Times that a model is read whose files change meanwhile."""


class GivenModel:
    """A model with what the user fixes of it. It is read when something of it is asked for."""

    def __init__(
        self, source: Any, shapes: Shapes, cache: Cache, values: Mapping[str, Any] | None = None
    ) -> None:
        """
        Args:
            source: path, "zoo:NAME", serialized bytes, ``onnx.ModelProto`` or ``onnx_ir.Model``.
            shapes: by input, or sizes by name of a dimension, for what the model leaves dynamic.
            cache: where the simplified model is kept.
            values: by input, for those that become constants.
        """
        self.source = source
        self._shapes, self._values, self._cache = shapes, values or {}, cache

    @cached_property
    def digest(self) -> str:
        """Tells this model with what is fixed from all others. The cache adds coexec's version."""
        if isinstance(self.source, str) and self.source.startswith(ZOO):
            text = f"{self.source} {sorted(self._shapes.items())} {sorted(self._values.items())}"
        else:
            text = digest_of(self.source, self._shapes, self._values, self._cache)
        return hashlib.sha256(f"{text} {FORM}".encode()).hexdigest()[:24]

    @property
    def is_told_quickly(self) -> bool:
        """Whether `digest` needs no look at the model's content."""
        from coexec.frontend.digest import is_remembered

        if isinstance(self.source, str) and self.source.startswith(ZOO):
            return True
        is_path = isinstance(self.source, str | os.PathLike)
        return is_path and is_remembered(self.source, self._cache)

    @cached_property
    def model(self) -> "Model":
        """The simplified model, checked once against the given one."""
        from coexec.frontend.load import restore, save

        entry = self._cache.find("models", self.digest)
        if entry is not None:
            with suppress(StoreError):  # a weight is gone or damaged: the model is made again
                return restore(entry, self._cache, self.digest, self._name())
        for _ in range(_TRIES):
            before = self.digest
            model = self._load(check=True, digest=before)
            if isinstance(self.source, str | os.PathLike):
                del self.digest  # computed again: the files may have changed while they were read
            if self.digest == before:
                return save(model, self._cache)
        raise ModelError(f"the model {str(self.source)!r} changes while it is read; wait until "
                         f"it is written completely")  # fmt: skip

    @cached_property
    def published_graph(self) -> "Graph":
        """The tasks of the model for engines that do not rewrite it as ours do.

        That is for platforms whose engines are simulated from what was published about them.
        """
        return self._load(rewrites=False, digest=self.digest).graph

    def _load(self, **how: Any) -> "Model":
        from coexec.frontend.load import load

        return load(
            self.resolved(), shapes=self._shapes, values=self._values, name=self._name(), **how
        )

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
        from coexec.frontend.fixed import fix
        from coexec.frontend.read import read

        model = read(self.resolved())
        fix(model, self._shapes, self._values)
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
