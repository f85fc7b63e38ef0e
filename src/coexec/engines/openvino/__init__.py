"""OpenVINO: Intel's runtime, for CPU cores of all makers, Intel's GPUs and NPUs."""
