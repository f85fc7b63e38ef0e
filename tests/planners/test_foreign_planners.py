"""A planner of another package: found by its entry point, used like ours, refused with the reason.

The planner is the one that docs/guides/planner.md shows.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from coexec import planners
from coexec.errors import PlanError, UsageError
from coexec.planners import PLANNERS, find_planner
from tests.helpers.distributions import write_distribution
from tests.helpers.graphs import Case, make_graph, make_system, table

GRAPH = make_graph({"a": [], "b": ["a"], "c": ["b"]})
CHAIN = Case(GRAPH, table(GRAPH, {"p": (1, 1, 1), "q": (1, 1, 1)}), make_system("pq"))
PAGE = Path(__file__).parents[2] / "docs" / "guides" / "planner.md"
Install = Callable[..., None]


def forget() -> None:
    for function in (planners._entries, planners._loaded):
        function.cache_clear()


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs the package of the docs as a distribution, with one text replaced."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    module = f"turns_{tmp_path.name}"  # modules stay imported: each test has its own

    def installed(old: str = "", new: str = "") -> None:
        assert old in code
        changed = code.replace(old, new) if old else code
        write_distribution(tmp_path, module, "1.0", changed, "coexec.planners", "turns:solve")
        monkeypatch.syspath_prepend(tmp_path)
        forget()

    yield installed
    monkeypatch.undo()
    forget()


def test_it_is_used_like_ours(install: Install) -> None:
    assert "turns" not in PLANNERS
    install()
    assert "turns" in PLANNERS and list(PLANNERS) == sorted(PLANNERS)
    assert list(PLANNERS["turns"].options) == ["first"]
    plan = PLANNERS["turns"](*CHAIN, first=1)
    assert plan.provenance.planner == "turns" and plan.provenance.options["first"] == 1
    assert len(plan.places) == 2
    with pytest.raises(UsageError, match=r"no planner 'turn' \(did you mean 'turns'\?\); there"):
        find_planner("turn")


@pytest.mark.parametrize(
    ("replaced", "error", "reason"),
    [
        (("import math", "import no_such_module"), UsageError, "cannot be imported: ModuleNot"),
        (("def solve", "solve = 5\n\n\ndef other"), UsageError, "is a int, and no function"),
        (("return Solution(", "return list("), PlanError, "'turns' failed .TypeError"),
        (("return Solution(assignment, problem.tasks)", "return 5"), PlanError, "returns a int"),
    ],
)
def test_one_that_is_broken_is_refused_with_the_reason(
    replaced: tuple[str, str], error: type[Exception], reason: str, install: Install
) -> None:
    install(*replaced)
    with pytest.raises(error, match=reason) as caught:
        PLANNERS["turns"](*CHAIN)
    assert "reinstall its package" in str(caught.value)


def test_a_planner_that_does_not_exist_gets_all_names() -> None:
    with pytest.raises(UsageError) as caught:
        find_planner("fast", "auto")
    for name in ("auto", *PLANNERS):
        assert name in str(caught.value)
