"""Run every example and compare what it prints with its recorded output.

    python tests/check_examples.py            check all
    python tests/check_examples.py 02_plan    check one
    python tests/check_examples.py --record   write examples/*.out anew

The README shows the first example in full; it must be the file, word for word.
"""

import argparse
import difflib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
LIMIT_S = 300


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the examples and compare their output.")
    parser.add_argument("names", nargs="*", help="examples without .py; all by default")
    parser.add_argument("--record", action="store_true", help="write the outputs anew")
    arguments = parser.parse_args()
    scripts = [EXAMPLES / f"{n}.py" for n in arguments.names] or sorted(EXAMPLES.glob("*.py"))
    failures = [reason for script in scripts if (reason := check(script, arguments.record))]
    failures += [reason for reason in [check_readme()] if reason]
    for reason in failures:
        print(reason, file=sys.stderr)
    return 1 if failures else 0


def check(script: Path, record: bool) -> str | None:
    """Why ``script`` does not print what is recorded; None if it does."""
    try:
        run = _run(script)
    except subprocess.TimeoutExpired:
        return f"{script.name} did not end within {LIMIT_S} s"
    if run.returncode:
        return f"{script.name} ended with exit code {run.returncode}:\n{run.stderr}"
    recorded = script.with_suffix(".out")
    if record:
        recorded.write_text(run.stdout, encoding="utf-8")
    elif not recorded.exists():
        return f"{script.name} has no recorded output: run tests/check_examples.py --record"
    expected = recorded.read_text(encoding="utf-8")
    if run.stdout != expected:
        return f"{script.name} prints something else than {recorded.name}:\n" + "\n".join(
            difflib.unified_diff(
                expected.splitlines(), run.stdout.splitlines(), "recorded", "printed", lineterm=""
            )
        )
    print(f"{script.name} ok")
    return None


def _run(script: Path) -> subprocess.CompletedProcess[str]:
    """Run in an empty folder with an empty cache, as a newcomer does."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {
            "XDG_CACHE_HOME": folder,
            "PYTHONIOENCODING": "utf-8",
            "COLUMNS": "100",
            "NO_COLOR": "1",
        }
        return subprocess.run(
            [sys.executable, str(script)],
            cwd=folder,
            env=environment,
            capture_output=True,
            encoding="utf-8",
            timeout=LIMIT_S,
        )


def check_readme() -> str | None:
    """Why the README's example is not the first example; None if it is."""
    first = min(EXAMPLES.glob("*.py"))
    shown = f"```python\n{first.read_text(encoding='utf-8')}```"
    if shown not in (ROOT / "README.md").read_text(encoding="utf-8"):
        return f"README.md does not show {first.name} word for word: copy the file into it"
    return None


if __name__ == "__main__":
    sys.exit(main())
