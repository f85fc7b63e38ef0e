"""An engine of another package that computes one kind of operator wrongly."""

from dataclasses import dataclass

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from coexec.engines.base import Engine, OpenEngine
from coexec.errors import ExecutionError


@dataclass(frozen=True)
class Harm:
    operator: str = ""
    """The operator that is computed wrongly, or refused."""
    how: str = "one more"
    """"one more": the last element is larger by 1. "together": so it is beside other operators
    only. "zeros": so it is if all inputs are zeros. "NaN": the first one is NaN. "fails",
    "raises" or "refused"."""


class Program:
    def __init__(self, module, harm):
        model = onnx.load_model_from_string(module.proto)
        for tensor in model.graph.initializer:
            if tensor.name in module.weights:
                values = module.weights[tensor.name]
                tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
        self.evaluator = ReferenceEvaluator(model)
        self.several = len(module.operators) > 1
        self.harm = harm.how if harm.operator in module.operators else ""

    def bind(self, inputs, outputs):
        self.inputs, self.outputs = dict(inputs), dict(outputs)
        self.set_input, self.set_output = self.inputs.__setitem__, self.outputs.__setitem__
        return self

    def run(self):
        if self.harm == "fails":
            raise ExecutionError("made to fail")
        if self.harm == "raises":
            raise KeyError("made to raise")
        zeros = not any(np.any(array) for array in self.inputs.values())
        results = self.evaluator.run(list(self.outputs), self.inputs)
        for tensor, result in zip(self.outputs.values(), results, strict=True):
            tensor[...] = result
            one_more = {"one more": True, "together": self.several, "zeros": zeros}
            if one_more.get(self.harm):
                tensor[(-1,) * tensor.ndim] += 1
            if self.harm == "NaN":
                tensor[(0,) * tensor.ndim] = np.nan


class Harmed(Engine):
    name = "harmed"
    options = Harm
    distributions = ("harmed-engine",)
    needs_trial = False

    def open(self, device, info, options, folder):
        engine = OnCores(device, info)
        engine.harm = options
        return engine


class OnCores(OpenEngine):
    harm = Harm()

    def why_not_operator(self, op, tensors):
        refused = self.harm.how == "refused" and op.op_type == self.harm.operator
        return f"there is no {op.op_type} here" if refused else None

    def compile(self, module):
        return Program(module, self.harm)
