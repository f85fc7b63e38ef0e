"""Start time of a session whose profile and plan are cached, against ONNX Runtime.

Each start is a separate process, in turns; imports count. Goal: at most 0.5 s more than ONNX
Runtime for the same model.
"""

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from common import arguments, show, two_cores
from model_files import model_file

from coexec import InferenceSession

_OURS = """
import sys, time
start = time.perf_counter()
import coexec
coexec.InferenceSession(sys.argv[1], devices=sys.argv[2], cache=sys.argv[3] or None)
print(time.perf_counter() - start)
"""
_THEIRS = """
import sys, time
start = time.perf_counter()
import onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 2
onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
print(time.perf_counter() - start)
"""


def _start_s(program: str, *words: str) -> float:
    done = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def main() -> None:
    args = arguments(__doc__ or "", ["inception_v3", "squeezenet"])
    devices = ",".join(two_cores())
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in args.models:
            path = str(model_file(name, Path(folder)))
            InferenceSession(path, devices=devices, cache=args.cache).close()
            coexec_s, ort_s = [], []
            for _ in range(min(args.rounds, 7)):
                coexec_s.append(_start_s(_OURS, path, devices, args.cache or ""))
                ort_s.append(_start_s(_THEIRS, path))
            rows.append(
                {
                    "model": Path(name).stem,
                    "coexec_s": statistics.median(coexec_s),
                    "onnxruntime_s": statistics.median(ort_s),
                    "more_s": statistics.median(coexec_s) - statistics.median(ort_s),
                }
            )
    show(f"start from the cache, {devices}, imports included", rows, args.json)


if __name__ == "__main__":
    main()
