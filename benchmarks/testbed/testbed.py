"""n small machines on one Linux machine, as root: namespaces, a slow network, Ray.

    python benchmarks/testbed/testbed.py probe          # what is needed, and the reason if it lacks
    python benchmarks/testbed/testbed.py check          # bandwidths and CPU quotas, measured
    python benchmarks/testbed/testbed.py up --machines 4 --mbit 50 --medium ports --ray
    python benchmarks/testbed/testbed.py exec m1 COMMAND ...    # in a test bed that is up
    python benchmarks/testbed/testbed.py down           # what a killed test bed left behind

`up` stays in the foreground; Ctrl-C takes everything down. docs/testbed.md says what is emulated.
"""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import bed_tags
import ray_nodes
from bed import MEDIA, Testbed
from bed_check import tables
from bed_probe import probe
from host_commands import in_namespace

from coexec.errors import CoexecError, ExecutionError, UsageError

__all__ = ["Testbed", "main"]

_END_S = 30.0
"""Time that the owner of a test bed has to take it down."""


def main() -> int:
    options = _arguments()
    try:
        code = VERBS[options.verb](options)
    except CoexecError as error:
        print(f"testbed.py: {error}", file=sys.stderr)
        return 2
    return code


def up(options: argparse.Namespace) -> int:
    """Until a signal comes."""
    bed = Testbed(options.machines, options.mbit, options.medium, driver=options.driver)
    with _signals_leave():
        try:
            bed.up()
            if options.ray:
                ray_nodes.start_ray(bed)
            print(_about(bed, options.ray), flush=True)
            while True:
                signal.pause()
        finally:
            bed.down()


def down(options: argparse.Namespace) -> int:
    """Without a tag: all whose owner is gone."""
    found = {str(tag): tag for tag in bed_tags.standing()}
    if options.tag and options.tag not in found:
        raise UsageError(f"no test bed {options.tag!r}; there are {', '.join(found) or 'none'}")
    for name, tag in found.items():
        if options.tag == name:
            _end_owner(tag)
        if tag.has_owner:
            print(f"{name}: stays, process {tag.pid} runs; `down {name}` ends it")
        else:
            bed_tags.remove(tag)
            print(f"{name}: removed")
    return 0


def check(options: argparse.Namespace) -> int:
    """Success if each bandwidth is as asked."""
    fine = True
    for text, good in tables(options.mbit, options.seconds):
        print(text, flush=True)
        fine &= good
    return 0 if fine else 1


def show_probe(_: argparse.Namespace) -> int:
    """Success if a test bed with ports can be had."""
    findings = probe()
    for finding in findings:
        what = f"no: {finding.reason}" if finding.reason else "yes"
        print(f"{finding.need:24} for {finding.use:8} {what}")
    return 1 if any(f.reason and f.use == "all" for f in findings) else 0


def execute(options: argparse.Namespace) -> int:
    """Becomes the command."""
    beds = [tag for tag, owned in bed_tags.standing().items() if owned]
    chosen = [tag for tag in beds if options.tag in (None, str(tag))]
    if len(chosen) != 1:
        names = ", ".join(map(str, beds)) or "none"
        raise UsageError(
            f"{len(chosen)} test beds fit; start one with `up`, or choose by "
            f"--tag; there are {names}"
        )
    [tag] = chosen
    try:
        known = json.loads((tag.folder / "testbed.json").read_text())
    except FileNotFoundError:
        raise ExecutionError(f"test bed {tag} is not ready yet; try again in a second") from None
    if options.machine not in known["machines"]:
        raise UsageError(
            f"no machine {options.machine!r} in test bed {tag}; there are "
            f"{', '.join(known['machines'])}"
        )
    words = in_namespace(tag.namespace(options.machine), *options.command)
    os.execvpe(words[0], words, {**os.environ, **known["environment"]})


VERBS = {"up": up, "down": down, "check": check, "probe": show_probe, "exec": execute}


@contextmanager
def _signals_leave() -> Iterator[None]:
    """Signals that end a program raise SystemExit instead, so that `finally` is reached. Ctrl-C,
    too, which a shell lets programs in the background ignore."""

    def leave(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)
    yield


def _end_owner(tag: bed_tags.Tag) -> None:
    """Ask the owner to take its test bed down."""
    end_s = time.monotonic() + _END_S
    if tag.has_owner:
        os.kill(tag.pid, signal.SIGTERM)
    while tag.has_owner:
        if time.monotonic() > end_s:
            raise ExecutionError(
                f"process {tag.pid}, which owns test bed {tag}, did not end "
                f"within {_END_S:g} s; kill it and run `down` again"
            )
        time.sleep(0.05)


def _about(bed: Testbed, with_ray: bool) -> str:
    rows = [f"  {name:12} {bed.address(name)}" for name in bed.machines]
    ray = ", Ray at RAY_ADDRESS" if with_ray else ""
    program = Path(sys.argv[0])
    return "\n".join(
        [
            f"test bed {bed.tag}: {bed.mbit:g} Mbit/s, {bed.medium}{ray}",
            *rows,
            f"python {program} exec {bed.driver} COMMAND ...   runs one there; Ctrl-C ends all",
        ]
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("up", help="start a test bed and stay until Ctrl-C")
    verb.add_argument("--machines", type=_machines, default=2, metavar="N|NAME,NAME,...")
    verb.add_argument("--mbit", type=float, default=50.0, help="rate of the links in Mbit/s")
    verb.add_argument("--medium", choices=MEDIA, default="ports")
    verb.add_argument(
        "--driver",
        help="where the user sits; by default the first machine; another "
        "name adds a machine with an unlimited port",
    )
    verb.add_argument("--ray", action="store_true", help="start a Ray node in each machine")
    verb = verbs.add_parser("down", help="remove what killed test beds left behind")
    verb.add_argument("tag", nargs="?", help="one that is up")
    verb = verbs.add_parser("check", help="measure bandwidths and CPU quotas")
    verb.add_argument("--mbit", type=float, default=50.0)
    verb.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    verbs.add_parser("probe", help="say what is needed and is not there")
    verb = verbs.add_parser("exec", help="run a command in a machine")
    verb.add_argument("--tag", help="of the test bed, if several are up")
    verb.add_argument("machine")
    verb.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if options.verb == "exec" and not options.command:
        parser.error("exec needs a command")
    return options


def _machines(text: str) -> int | list[str]:
    return int(text) if text.isdecimal() else text.split(",")


if __name__ == "__main__":
    sys.exit(main())
