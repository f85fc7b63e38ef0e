"""Kernels as text and numbers: generators and the network that they compute, without a driver."""
