"""The OpenCL driver: compiles and runs the kernels that `coexec.engines.kernels` generates."""
