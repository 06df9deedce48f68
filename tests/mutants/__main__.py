"""`make mutants`: changes one place of a module at a time, and lists the changes that its tests do not notice.

    python -m tests.mutants [--tests FOLDER ...] PATH ...

The paths are all in kubecel/, which has a project and tests of its own, or all outside.

mutmut writes the mutants and runs the tests, in a copy of the working tree. Without `--tests` it runs the tests beside
each module: for `conversion/claims/layout.py`, `tests/conversion/claims` and the files in `tests/neuron`; for one of
kubecel, all of `kubecel/kubecel_tests`.
"""

import argparse
import ast
import difflib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
KUBECEL: Final = ROOT / "kubecel"
_SURVIVED: Final = {0: "survives", 5: "no test", 33: "no test", 35: "suspicious", -11: "segfault", -9: "segfault"}
"""Exit codes in mutmut's results that stand for a mutant that no test noticed."""
_CHANGED: Final = ("-", "+")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tests", nargs="+", default=[], metavar="PATH", help="folders or files of tests, instead")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="mutants at the same time")
    parser.add_argument("paths", nargs="+", metavar="PATH", help="modules, or folders with modules")
    arguments = parser.parse_args()
    missing = [path for path in (*arguments.paths, *arguments.tests) if not (ROOT / path).exists()]
    if missing:
        parser.error(f"there is no {missing[0]}")
    named = sorted({module for path in arguments.paths for module in _modules(path)})
    projects = {KUBECEL if each.is_relative_to(KUBECEL) else ROOT for each in named}
    if len(projects) != 1:
        parser.error("name modules, and those of kubecel/ in a run of their own")
    [project] = projects
    modules = [str(each.relative_to(project)) for each in named]
    tests = [str((ROOT / each).relative_to(project)) for each in arguments.tests] or sorted(
        {each for module in modules for each in _beside(project, module)}
    )
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        _copy_tree(Path(name))
        copy = Path(name) / project.relative_to(ROOT)
        _configure(copy, modules, tests)
        command = [sys.executable, Path(__file__).with_name("run.py"), "run", "--max-children", str(arguments.workers)]
        # mutmut writes its progress on one line, which is of no use in a file.
        output = None if sys.stdout.isatty() else subprocess.PIPE
        done = subprocess.run(command, cwd=copy, check=False, stdout=output, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            print((done.stdout or "").replace("\r", "\n")[-8000:])
            return done.returncode
        _report(copy, modules)
    return 0


def _modules(path: str) -> Iterator[Path]:
    """The modules that a path of the command line names."""
    found = sorted((ROOT / path).rglob("*.py")) if (ROOT / path).is_dir() else [ROOT / path]
    return (each for each in found if each.name != "__init__.py")


def _beside(project: Path, module: str) -> Iterator[str]:
    """The folder of tests that mirrors the module's, and the files of tests in the folders above it."""
    if project == KUBECEL:
        yield "kubecel_tests"
        return
    for folder in Path(module).parents[:-1]:
        tests = Path("tests", folder)
        if str(folder) == str(Path(module).parent) and (ROOT / tests).is_dir():
            yield str(tests)
        else:
            yield from (str(each.relative_to(ROOT)) for each in sorted((ROOT / tests).glob("test_*.py")))


def _copy_tree(to: Path) -> None:
    """Copy the files that Git knows or would add."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)


def _configure(copy: Path, modules: Sequence[str], tests: Sequence[str]) -> None:
    """Append mutmut's section to the copy's `pyproject.toml`."""
    project = copy / "pyproject.toml"
    packages = tomllib.loads(project.read_text())["tool"]["importlinter"]["root_packages"]
    settings = {
        "source_paths": packages,
        "only_mutate": modules,
        # The tests read files of the whole tree.
        "also_copy": sorted(each.name for each in copy.iterdir() if each.name not in {*packages, "tests"}),
        "pytest_add_cli_args": ["-p", "no:cacheprovider", "-p", "no:xdist", "--hypothesis-seed=0"],
        # Each run is in a process of its own: hypothesis refuses to run a test of a class twice in one.
        "process_isolation": "forkserver",
        "pytest_add_cli_args_test_selection": tests,
    }
    lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())
    project.write_text(f"{project.read_text()}\n[tool.mutmut]\ntrack_dependencies = false\n{lines}")


def _report(copy: Path, modules: Sequence[str]) -> None:
    """Print the survivors of each module, and then the scores."""
    scores = []
    for module in modules:
        results = copy / "mutants" / f"{module}.meta"
        codes = json.loads(results.read_text())["exit_code_by_key"] if results.exists() else {}
        survivors = {name: _SURVIVED[code] for name, code in codes.items() if code in _SURVIVED}
        for line, state, diff in sorted(_described(copy, module, survivors)):
            print(f"{module}:{line}: {state}\n{diff}\n")
        scores.append((module, len(codes) - len(survivors), len(codes)))
    for module, noticed, total in scores:
        print(f"{module}: {noticed} of {total} mutants noticed{f' ({noticed / total:.0%})' if total else ''}")


def _described(copy: Path, module: str, survivors: dict[str, str]) -> Iterator[tuple[int, str, str]]:
    """Line, state and diff of each survivor."""
    lines = _functions(copy / module)
    mutated = _functions(copy / "mutants" / module)
    original, text = (copy / module).read_text().splitlines(), (copy / "mutants" / module).read_text().splitlines()
    for name, state in survivors.items():
        generated = name.rpartition(".")[2]
        key = generated.partition("__mutmut_")[0]
        owner, _, function = key.removeprefix("xǁ").rpartition("ǁ") if "ǁ" in key else ("", "", key.removeprefix("x_"))
        first, last = lines[owner, function]
        changed_first, changed_last = mutated[owner, generated]
        before = original[first - 1 : last]
        after = [text[changed_first - 1].replace(generated, function, 1), *text[changed_first:changed_last]]
        diff = list(difflib.unified_diff(before, after, n=1, lineterm=""))[2:]
        start = int(diff[0].split()[1].removeprefix("-").partition(",")[0])
        offset = next(at for at, line in enumerate(diff[1:]) if line.startswith(_CHANGED))
        yield first + start + offset - 1, state, "\n".join(f"    {line}" for line in diff[1:])


def _functions(path: Path) -> dict[tuple[str, str], tuple[int, int]]:
    """First and last line of each function, by class and name."""
    found = {}
    for node in ast.parse(path.read_text()).body:
        owner, members = (node.name, node.body) if isinstance(node, ast.ClassDef) else ("", [node])
        for member in members:
            if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef):
                found[owner, member.name] = member.lineno, member.end_lineno or member.lineno
    return found


if __name__ == "__main__":
    sys.exit(main())
