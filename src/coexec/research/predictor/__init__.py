"""CoDL's latency predictor: seconds of tasks and of their parts, from the work of their kernels.

    latency    the predictor, and its unit times
    fitting    unit times from measured seconds
    workloads  the work of any operators; `mlas`, `kernels`: of ONNX Runtime's kernels, and of ours
    samples    generated networks
    training   measures them, learns and stores the unit times

`coexec profile --train` trains one. Profiles use it from then on.
"""
