"""A neural-network engine on OpenCL: kernels generated for one model and one processor."""
