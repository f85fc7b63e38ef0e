"""An engine of another package with a lower precision, whose errors are known."""

from dataclasses import dataclass, replace
from typing import Literal

import onnx
from onnx.reference import ReferenceEvaluator

from coexec.engines.base import Engine, OpenEngine, Processor

ERROR = {"Tanh": 0.1, "Neg": 1e-3, "Abs": 1e-3, "MatMul": 1e-3}
"""By operator, the relative error of a module that has it, in bf16."""


@dataclass(frozen=True)
class Options:
    precision: Literal["float32", "bf16"] = "float32"


class Program:
    def __init__(self, module, precision):
        model = onnx.load_model_from_string(module.proto)
        for tensor in model.graph.initializer:
            if tensor.name in module.weights:
                values = module.weights[tensor.name]
                tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
        self.evaluator = ReferenceEvaluator(model)
        errors = (ERROR.get(operator, 0.0) for operator in module.operators)
        self.factor = 1.0 + (sum(errors) if precision == "bf16" else 0.0)

    def bind(self, inputs, outputs):
        self.inputs, self.outputs = dict(inputs), dict(outputs)
        self.set_input, self.set_output = self.inputs.__setitem__, self.outputs.__setitem__
        return self

    def run(self):
        results = self.evaluator.run(list(self.outputs), self.inputs)
        for tensor, result in zip(self.outputs.values(), results, strict=True):
            tensor[...] = result * self.factor


class Rough(Engine):
    name = "rough"
    options = Options
    distributions = ("rough-engine",)
    needs_trial = False

    def processors(self, kind):
        return [Processor(kind, "rough cores", precisions=("float32", "bf16"))]

    def describe(self, device, options):
        return replace(super().describe(device, options), precision=options.precision)

    def open(self, device, info, options, folder):
        return OnCores(device, info)


class OnCores(OpenEngine):
    def compile(self, module):
        return Program(module, self.info.precision)

    def why_not_operator(self, op, tensors):
        return "rough does not know Erf" if op.op_type == "Erf" else None
