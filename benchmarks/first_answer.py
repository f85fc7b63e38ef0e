"""A program that runs one request, either without coexec or with its import changed to coexec.

    python benchmarks/first_answer.py MODULE MODEL FEEDS OUTPUTS RUNS

MODULE has the `InferenceSession` that is used, FEEDS is a pickled dict, and the first outputs are
pickled to OUTPUTS. Prints JSON: seconds of the import, of the creation and of the first run, and
the peak memory in bytes. If RUNS is not 0, the program waits until the session's background work is
done, runs that many further requests, and also prints the time and memory of this.

Nothing else is imported, because an import would take time and memory.
"""

import json
import pickle
import sys
import time
from importlib import import_module
from pathlib import Path

import numpy  # noqa: F401  the feeds are NumPy arrays, so every such program imports it


def peak_bytes():
    """The peak memory of this process; Linux only."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    return None


def main():
    module, model, feeds, outputs, runs = sys.argv[1:]
    inputs = pickle.loads(Path(feeds).read_bytes())
    times_s = [time.perf_counter()]
    session_class = import_module(module).InferenceSession
    times_s.append(time.perf_counter())
    session = session_class(model)
    times_s.append(time.perf_counter())
    answer = session.run(None, inputs)
    times_s.append(time.perf_counter())
    steps = zip(("import_s", "creation_s", "run_s"), times_s, times_s[1:], strict=False)
    results = {name: end_s - start_s for name, start_s, end_s in steps}
    results["first_bytes"] = peak_bytes()
    Path(outputs).write_bytes(pickle.dumps(answer))
    if int(runs):
        getattr(session, "wait", lambda: None)()
        results["waited_s"] = time.perf_counter() - times_s[-1]
        for _ in range(int(runs)):
            session.run(None, inputs)
        results["end_bytes"] = peak_bytes()
    print(json.dumps(results))


if __name__ == "__main__":
    main()
