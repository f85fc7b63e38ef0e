"""An engine of another package: the ONNX project's evaluator, on any CPU cores."""

import onnx
from onnx.reference import ReferenceEvaluator

from coexec.engines.base import Engine, OpenEngine


class Program:
    def __init__(self, module):
        model = onnx.load_model_from_string(module.proto)
        for tensor in model.graph.initializer:
            if tensor.name in module.weights:
                values = module.weights[tensor.name]
                tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
        self.evaluator = ReferenceEvaluator(model)

    def bind(self, inputs, outputs):
        self.inputs, self.outputs = dict(inputs), dict(outputs)
        self.set_input, self.set_output = self.inputs.__setitem__, self.outputs.__setitem__
        return self

    def run(self):
        results = self.evaluator.run(list(self.outputs), self.inputs)
        for tensor, result in zip(self.outputs.values(), results, strict=True):
            tensor[...] = result


class ThirtyLines(Engine):
    name = "thirty"
    distributions = ("thirty_lines",)

    def open(self, device, info, options, folder):
        return OnCores(device, info)


class OnCores(OpenEngine):
    def compile(self, module):
        return Program(module)
