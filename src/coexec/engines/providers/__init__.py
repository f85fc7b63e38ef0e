"""ONNX Runtime's execution providers for other processors than the CPU, each as an engine."""
