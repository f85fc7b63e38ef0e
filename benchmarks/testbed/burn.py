"""Computes for some seconds; prints the share of a core that it got and its longest pause in s.

burn.py SECONDS
"""

import sys
import time


def main(seconds: float) -> None:
    start_s = last_s = time.perf_counter()
    cpu_s, pause_s = time.process_time(), 0.0
    while last_s < start_s + seconds:
        now_s = time.perf_counter()
        pause_s, last_s = max(pause_s, now_s - last_s), now_s
    print((time.process_time() - cpu_s) / (last_s - start_s), pause_s)


if __name__ == "__main__":
    main(float(sys.argv[1]))
