"""The CUDA driver: runs the kernels that `coexec.engines.kernels` generates as one CUDA graph."""
