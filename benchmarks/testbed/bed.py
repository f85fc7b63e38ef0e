"""A test bed: machines with a slow network between them, on one Linux machine, as root."""

import atexit
import json
import math
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import bed_tags
import cpu_quota
import wires
from host_commands import in_namespace, signals_wait

from coexec.errors import ExecutionError, UsageError

__all__ = ["MEDIA", "Medium", "Testbed"]

Medium = Literal["ports", "shared"]
MEDIA: tuple[Medium, ...] = ("ports", "shared")
_NAME = re.compile(r"[a-z][a-z0-9]{0,11}")
"""It is the name of a link, too, of which Linux takes 15 characters."""
_TAKEN = (wires.SWITCH, wires.MEDIUM, wires.BRIDGE)


class Testbed:
    """Machines, each a network namespace, and a network between them.

        with Testbed(["a", "b"], mbit=50) as bed:
            bed.run("a", ["python", "program.py", bed.address("b")]).wait()

    With "ports" each machine sends at ``mbit`` and receives at ``mbit``, as at a switch. With
    "shared" all together send at ``mbit``, as on Wi-Fi. Everything is removed when the block ends,
    also by an exception or Ctrl-C. What a killed process leaves behind is removed by
    ``testbed.py down``.

    Args:
        machines: their names, or how many; then they are called m0, m1, ...
        mbit: rate in Mbit/s.
        medium: "ports" or "shared".
        driver: the machine where the user sits; the first one by default. Another name adds a
            machine, whose port is not limited unless ``rates`` says so.
        rates: other rates of single machines' ports, in Mbit/s; None: not limited. On a shared
            medium every machine still passes the medium.

    Raises:
        UsageError: a name, rate or medium is wrong.
    """

    __test__ = False  # pytest takes classes called Test... for tests

    def __init__(
        self,
        machines: int | Sequence[str] = 2,
        mbit: float = 50.0,
        medium: Medium = "ports",
        *,
        driver: str | None = None,
        rates: Mapping[str, float | None] | None = None,
    ) -> None:
        names = [f"m{i}" for i in range(machines)] if isinstance(machines, int) else list(machines)
        own: dict[str, float | None] = dict(rates or {})
        if driver is not None and driver not in names:
            names.append(driver)
            own.setdefault(driver, None)
        _check(names, own, mbit, medium)
        self.machines: tuple[str, ...] = tuple(names)
        self.mbit, self.medium = mbit, medium
        self.driver = driver or names[0]
        self.tag = bed_tags.new_tag()
        self.environment: dict[str, str] = {}
        """Added to the environment of every process that is started."""
        self._rates: dict[str, float | None] = {name: own.get(name, mbit) for name in names}
        self._groups: dict[str, Path] = {}
        self._children: list[subprocess.Popen[Any]] = []
        self._owner = os.getpid()

    def __enter__(self) -> "Testbed":
        self.up()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.down()

    def up(self) -> None:
        """Make the machines and the network. What was made is removed if that fails.

        Raises:
            UsageError: it is up.
            ExecutionError: the machine does not allow it; `testbed.py probe` says more.
        """
        if self.folder.exists():
            raise UsageError(f"test bed {self.tag} is up already; another one is another Testbed")
        atexit.register(self.down)
        try:
            self._make_folder()
            wires.make_switch(self._switch)
            if self.medium == "shared":
                wires.make_medium(self._switch, self.mbit)
            for index, machine in enumerate(self.machines):
                wires.connect(self._switch, self.namespace(machine), machine, index)
                if self.medium == "shared":
                    part = self.mbit / len(self.machines)
                    wires.to_medium(self._switch, machine, index, part, self.mbit)
                self._shape(machine, self._rates[machine])
            self.note()
        except BaseException:
            self.down()
            raise

    def down(self) -> None:
        """End all processes in the machines and remove everything. May be called again."""
        if os.getpid() != self._owner:  # a forked child's exit
            return
        bed_tags.remove(self.tag)
        for child in self._children:
            child.wait()
        atexit.unregister(self.down)

    @property
    def folder(self) -> Path:
        """For files of the test bed; removed with it."""
        return self.tag.folder

    def address(self, machine: str) -> str:
        """The IPv4 address of a machine."""
        return wires.address(self.machines.index(self._known(machine)))

    def namespace(self, machine: str) -> str:
        """The name of a machine's network namespace."""
        return self.tag.namespace(self._known(machine))

    def run(
        self,
        machine: str,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        **options: Any,
    ) -> subprocess.Popen[Any]:
        """Start a program in a machine.

        Args:
            env: added to this process's environment.
            options: of `subprocess.Popen`.
        """
        words = in_namespace(self.namespace(machine), *argv)
        if group := self._groups.get(machine):
            # Before `ip netns exec`, which hides /sys.
            words = ("sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group), *words)
        with signals_wait():
            child: subprocess.Popen[Any] = subprocess.Popen(
                words,
                env={**os.environ, **self.environment, **(env or {})},
                start_new_session=True,  # Ctrl-C in the terminal is for this process alone
                **options,
            )
            self._children.append(child)
        return child

    def cut(self, machine: str) -> None:
        """Pull the machine's cable: its packets vanish, and no process gets an error."""
        wires.cut(self._switch, self._known(machine))

    def slow(self, machine: str, mbit: float) -> None:
        """Let the machine's link have another rate in Mbit/s, both ways."""
        _check_rate(machine, mbit)
        self._shape(self._known(machine), mbit)

    def mend(self, machine: str) -> None:
        """The machine's link works again, at the rate that it had in the beginning."""
        wires.mend(self._switch, self._known(machine))
        self._shape(machine, self._rates[machine])

    def kill(self, machine: str) -> None:
        """Kill all processes of a machine, as if its power failed. The machine and its link stay.

        Raises:
            ExecutionError: some do not end.
        """
        bed_tags.end_processes([wires.inode(self.namespace(machine))])

    def limit(self, machine: str, cores: float, pids: Sequence[int] | None = None) -> None:
        """Limit a machine's processes to ``cores`` of CPU time together: the cross-check of pace.

        Args:
            pids: only these; by default all that the machine has and those it will have.

        Raises:
            UsageError: ``cores`` is not positive.
            ExecutionError: this machine has no CPU controller of cgroup v1.
        """
        inode = wires.inode(self.namespace(machine))
        those = list(bed_tags.processes({inode})) if pids is None else pids
        group = cpu_quota.limit(f"{self.tag.group}{machine}", cores, those, self.folder)
        if pids is None:
            self._groups[machine] = group

    def note(self) -> None:
        """Write down what `testbed.py exec` has to know."""
        known = {
            "machines": {name: self.address(name) for name in self.machines},
            "mbit": self.mbit,
            "medium": self.medium,
            "driver": self.driver,
            "environment": self.environment,
        }
        (self.folder / "testbed.json").write_text(json.dumps(known))

    def _make_folder(self) -> None:
        try:
            self.folder.mkdir(mode=0o700)
        except OSError as error:
            raise ExecutionError(
                f"no folder for the test bed: {error}; the environment variable "
                f"TMPDIR chooses where"
            ) from error

    @property
    def _switch(self) -> str:
        return self.tag.namespace(wires.SWITCH)

    def _shape(self, machine: str, mbit: float | None) -> None:
        """A Wi-Fi station, too, waits with sending until the medium takes it; what it receives is
        limited only if it is slower than the medium."""
        usual_on_medium = self.medium == "shared" and mbit == self.mbit
        receive = None if usual_on_medium else mbit
        wires.shape(self._switch, self.namespace(machine), machine, mbit, receive)

    def _known(self, machine: str) -> str:
        if machine not in self.machines:
            raise UsageError(
                f"no machine {machine!r} in this test bed; there are {', '.join(self.machines)}"
            )
        return machine


def _check(
    names: Sequence[str], rates: Mapping[str, float | None], mbit: float, medium: str
) -> None:
    if not names:
        raise UsageError("a test bed without machines; give 1 or more")
    if len(names) > 1000:
        raise UsageError(f"{len(names)} machines on one bridge; Linux takes 1000")
    for name in names:
        if not _NAME.fullmatch(name) or name in _TAKEN:
            raise UsageError(
                f"a machine cannot be called {name!r}; take a letter and up to 11 letters and "
                f"digits, as 'm0', but not {', '.join(_TAKEN)}"
            )
    if len(set(names)) < len(names):
        raise UsageError(f"two machines have one name: {', '.join(names)}")
    if medium not in MEDIA:
        raise UsageError(f"no medium {medium!r}; there are {', '.join(MEDIA)}")
    if unknown := set(rates) - set(names):
        raise UsageError(
            f"rates for {', '.join(sorted(unknown))}, which are no machines; there "
            f"are {', '.join(names)}"
        )
    for name, rate in {"all": mbit, **rates}.items():
        if rate is not None:
            _check_rate(name, rate)


def _check_rate(machine: str, mbit: float) -> None:
    if not 0.1 <= mbit <= 10_000 or math.isnan(mbit):
        raise UsageError(f"a link of {mbit:g} Mbit/s ({machine}); a token bucket does 0.1 to 10000")
