"""Kernels of the engine cpp that are compiled once for all tests, in this run and later ones.
Without this helper, every empty cache compiles them again."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from coexec.cache.files import write_whole
from coexec.engines.cpp.compiler import CppCompiler
from coexec.keys import digest


@contextmanager
def compiled_once(store: Path) -> Iterator[None]:
    """Make compilers read the machine code of texts that were compiled before, also in other
    processes, from the folder ``store``. A compiler without an identity, which is that of no
    version, compiles all."""
    compile_objects = CppCompiler.objects

    def objects(
        compiler: CppCompiler, sources: Mapping[str, str], folder: Path
    ) -> Iterator[tuple[str, bytes]]:
        if not compiler.identity:
            yield from compile_objects(compiler, sources, folder)
            return
        places = {name: store / digest(name, text, compiler) for name, text in sources.items()}
        missing = {name: text for name, text in sources.items() if not places[name].exists()}
        yield from ((name, places[name].read_bytes()) for name in sources if name not in missing)
        for name, code in compile_objects(compiler, missing, folder):
            write_whole(places[name], [code])
            yield name, code

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CppCompiler, "objects", objects)
        yield
