"""`coexec doctor`: this machine and this installation, on one page for a report of a problem."""

from dataclasses import asdict

from coexec.cli.options import DebugOpt, JsonOpt
from coexec.cli.verbs import prints


@prints(
    verdict="One sentence: ready, ready but ..., or not ready because ..., with the remedy.",
    versions="Of coexec, Python and the system, with the run loop and the processor.",
    packages="Versions by package that coexec or an extra of it needs; null: not installed.",
    missing="By extra that is not complete, its missing packages and what installs them.",
    processors="Processors, each with what its engines say of it.",
    broken="By engine that cannot be used at all, the reason.",
    load="Processor time of other programs and of the host; empty: unknown.",
    limits="Processors, memory and files that may be used; null: no limit.",
)
def command(json: JsonOpt = False, debug: DebugOpt = False) -> None:
    """Print what is needed to understand a problem on this machine: versions, engines, and the
    load and the limits of the machine. The page has no name of the machine or of its user, and no
    home folder."""
    from coexec.cli.doctor_page import examined, print_page
    from coexec.cli.output import print_json

    page = examined()
    if json:
        print_json(asdict(page))
    else:
        print_page(page)
