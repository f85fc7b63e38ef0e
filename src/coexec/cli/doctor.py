"""`coexec doctor`: this machine and this installation, on one page for a report of a problem."""

from coexec.cli.options import DebugOpt, JsonOpt, SettingOptions, takes
from coexec.cli.verbs import prints


@prints(
    coexec="The version.",
    verdict="One sentence: ready, ready but ..., or not ready because ..., with the remedy.",
    machine="Facts by name; the unit is the end of the name.",
    unknown="By fact that could not be determined, the reason.",
    packages="Versions by package that coexec needs; null: not installed.",
    extras="Optional parts: versions, what each brings, and the command that installs it.",
    other_packages="Versions of further packages of the same libraries.",
    processors="Processors, each with what its engines say of it.",
    broken="By engine that cannot be used at all, the reason.",
    loop="The run loop, and why it is this one.",
    cache="The cache folder.",
    fitness="What would disturb measured times: verdict ok, look or unknown; the remedy.",
)
@takes("cache")
def command(options: SettingOptions, json: JsonOpt = False, debug: DebugOpt = False) -> None:
    """Print what is needed to understand a problem on this machine: processors, memory, packages,
    engines, the cache, and whether times can be measured here. The page has no name of the machine
    or of its user, and no home folder."""
    from coexec.cli.doctor_page import document, examined, print_page
    from coexec.cli.output import print_json

    page = examined(options.cache)
    if json:
        print_json(document(page))
    else:
        print_page(page)
