"""Run SqueezeNet on two processor cores at once, and compare with ONNX Runtime."""

import os

import numpy as np
import onnx_ir
import onnxruntime

import coexec
from coexec import zoo

model = onnx_ir.to_proto(zoo.build("squeezenet")).SerializeToString()  # or a path to a file
image = np.random.default_rng(0).standard_normal((1, 3, 224, 224), dtype=np.float32)

# Two clusters of one core each; one, if this process may use no more.
devices = [f"cpu:{core}" for core in sorted(os.sched_getaffinity(0))[:2]]
session = coexec.InferenceSession(model, devices=devices, planner="hope_greedy")
[found] = session.run(None, {"x": image})

reference = onnxruntime.InferenceSession(model)
[expected] = reference.run(None, {"x": image})

for info in (*session.get_inputs(), *session.get_outputs()):
    print(info.name, info.type, info.shape)
error = np.abs(found - expected).max() / np.abs(expected).max()
print("agrees with ONNX Runtime:", bool(error < 1e-4))
