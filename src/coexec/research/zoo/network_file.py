"""Reader of network files: tables of layers, one layer a line.

    set size 416                       a number that `build` may replace, and its default
    input 1 3 $size $size              shape of the input, which is named x
    block fire x: squeeze expand       a block: its inputs, then its parameters
      squeeze1x1 conv_relu $squeeze 1  name, method of `Layers`, arguments
      expand1x1 conv_relu $expand 1
      expand3x3 conv_relu $expand 3 pad=1 < squeeze1x1
      concat concat < expand1x1 expand3x3
    fire2 fire 16 64                   layers "fire2/squeeze1x1/conv" and so on
    output logits                      name of the last layer's result

A layer reads the layers behind ``<``, by default the layer of the line above. A block's result is
that of its last line. In a block, the name ``.`` stands for the block itself. ``1x7`` is height and
width. ``#`` starts a comment.
"""

from collections.abc import Mapping, Sequence
from string import Template
from typing import NamedTuple

import onnx_ir as ir

from coexec.research.zoo.layers import Layers


class _Block(NamedTuple):
    inputs: Sequence[str]
    parameters: Sequence[str]
    lines: list[str]


class NetworkFile:
    """A network file, and the shared blocks that it uses."""

    def __init__(self, name: str, *texts: str) -> None:
        """``texts``: files; the blocks of all, and the layers of the last."""
        self.name = name
        self._blocks: dict[str, _Block] = {}
        for text in texts:
            self._lines = self._read(text)

    def _read(self, text: str) -> list[str]:
        """The lines that belong to no block; blocks are noted."""
        lines = own = list[str]()
        for line in text.splitlines():
            line = line.partition("#")[0].rstrip()
            if line.startswith("block "):
                head, _, parameters = line.removeprefix("block ").partition(":")
                name, *inputs = head.split()
                lines = []
                self._blocks[name] = _Block(inputs, parameters.split(), lines)
            elif line.startswith(" "):
                lines.append(line)
            elif line:
                own.append(line)
        return own

    def build(self, **settings: int) -> ir.Model:
        """The model; ``settings`` replace numbers of the file's ``set`` lines."""
        heads = [line.split() for line in self._lines if line.startswith("set ")]
        parameters = {name: value for _, name, value in heads}
        if unknown := settings.keys() - parameters:
            raise ValueError(f"{self.name} has no number {', '.join(sorted(unknown))}")
        parameters |= {name: str(value) for name, value in settings.items()}
        shape, *lines, output = self._lines[len(heads) :]
        _, *sizes = Template(shape).substitute(parameters).split()
        layers = Layers(self.name, [int(size) for size in sizes])
        made = self._run(layers, lines, {"x": layers.input}, parameters, "")
        return layers.finish(made, output.split()[1])

    def _run(
        self,
        layers: Layers,
        lines: Sequence[str],
        values: Mapping[str, ir.Value],
        parameters: Mapping[str, str],
        path: str,
    ) -> ir.Value:
        """The result of the last line.

        Args:
            values: inputs by name.
            path: name of the block whose lines these are; "" for the network.
        """
        known = dict(values)
        made = next(iter(values.values()))
        for line in lines:
            layer, _, sources = Template(line).substitute(parameters).partition("<")
            name, kind, *arguments = layer.split()
            inputs = [known[source] for source in sources.split()] or [made]
            at = "/".join(part for part in (path, name) if part not in ("", "."))
            made = known[name] = self._layer(layers, kind, inputs, at, arguments)
        return made

    def _layer(
        self,
        layers: Layers,
        kind: str,
        inputs: Sequence[ir.Value],
        name: str,
        arguments: Sequence[str],
    ) -> ir.Value:
        if kind in self._blocks:
            block = self._blocks[kind]
            values = dict(zip(block.inputs, inputs, strict=True))
            parameters = dict(zip(block.parameters, arguments, strict=True))
            return self._run(layers, block.lines, values, parameters, name)
        reads = [inputs] if kind == "concat" else inputs
        options = dict(a.split("=") for a in arguments if "=" in a)
        made: ir.Value = getattr(layers, kind)(
            *reads,
            name,
            *(_value(a) for a in arguments if "=" not in a),
            **{key: _value(text) for key, text in options.items()},
        )
        return made


def _value(text: str) -> int | float | str | tuple[int, ...]:
    """A number, a pair such as "1x7", or the word itself."""
    for read in (int, float, lambda pair: tuple(map(int, pair.split("x")))):
        try:
            value: int | float | tuple[int, ...] = read(text)
            return value
        except ValueError:
            continue
    return text
