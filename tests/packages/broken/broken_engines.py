"""Engines of another package that break the contract, each in its own way."""

import os

import numpy as np

from coexec.engines.base import Engine, OpenEngine


class Unrelated:
    """No engine at all."""

    name = "unrelated"


class Misnamed(Engine):
    name = "another"

    def open(self, device, info, options, folder):
        raise NotImplementedError


class Raising(Engine):
    name = "raising"

    def open(self, device, info, options, folder):
        raise ZeroDivisionError("nothing works")


class Crashing(Engine):
    name = "crashing"

    def open(self, device, info, options, folder):
        os.abort()


class Wrong(Engine):
    name = "wrong"

    def open(self, device, info, options, folder):
        return Zeros(device, info)


class Zeros(OpenEngine):
    def compile(self, module):
        return self

    def bind(self, inputs, outputs):
        self.outputs = list(outputs.values())
        return self

    def run(self):
        for tensor in self.outputs:
            np.asarray(tensor)[...] = 0
