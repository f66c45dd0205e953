"""A sample project: a git repository with sources, build output, caches and untracked work."""

from __future__ import annotations

import subprocess
from pathlib import Path

from shellverdict.judging import Judge
from shellverdict.paths import PathClassifier
from shellverdict.rules import builtin_rules

IGNORED = """
node_modules/
dist/
build/
target/
__pycache__/
*.egg-info/
.venv/
.next/
coverage/
/logs
out
tmp/
.cache/
site/
docs/_build/
data/
uploads/
/secrets-local/
/localdb/
/nested-repo/
.env
"""
TRACKED = [
    ".gitignore", "package.json", "Cargo.toml", "pyproject.toml", "CMakeLists.txt", "docker-compose.yml",
    "src/app.ts", "src/main.py", "tests/test_app.py", "docs/index.md", "vendor/lib/lib.c",
    "generated/schema.py", "public/build/app.js", "legacy/build/old.c", "packages/a/src/a.ts",
    "packages/a/package.json", "packages/b/src/b.ts", "frontend/package.json", "frontend/src/x.ts",
    "services/api/Cargo.toml", "services/api/src/main.rs", "scripts/deploy.sh", "ios/App.swift",
    "android/app/build.gradle", "package-lock.json",
]  # fmt: skip
UNTRACKED = [
    "node_modules/left-pad/index.js", "node_modules/.cache/x", "dist/app.js", "dist/app.js.map",
    "build/app.o", "target/debug/app", "target/release/incremental/x", "__pycache__/a.pyc",
    "src/__pycache__/a.pyc", "tests/__pycache__/b.pyc", "src/shop.egg-info/x", ".venv/bin/python",
    ".pytest_cache/v", ".mypy_cache/v", ".ruff_cache/v", "coverage/index.html", "logs/dev.log", "out/x",
    "tmp/cache/x", ".cache/x", "site/index.html", "docs/_build/x", "frontend/node_modules/x/y",
    "frontend/.next/x", "frontend/dist/x", "packages/a/dist/x", "packages/a/node_modules/x",
    "services/api/target/x", "ios/build/x", "android/app/build/x", "data/set.csv", "uploads/a.png",
    "secrets-local/.env", "localdb/app.sqlite3", "notes/idea.md", "experiments/run.py",
    "work-in-progress/big.py", ".env", "list.txt", ".coverage",
]  # fmt: skip


def make_workspace(home: Path) -> Path:
    """Create the sample project below `home` and return its path."""
    project = home / "work" / "shop"
    for name in (*TRACKED, *UNTRACKED):
        _write(project / name, IGNORED if name == ".gitignore" else "x\n")
    _git(project, "init", "-q")
    _git(project, "add", "-f", *TRACKED)
    for nested, tracked in (("nested-repo", "work.py"), ("submodule", "build/x.c")):
        _write(project / nested / tracked, "x\n")
        _git(project / nested, "init", "-q")
        _git(project / nested, "add", "-f", tracked)
    (home / "outside").mkdir()
    (project / "linked").symlink_to(home / "outside")
    (project / "linkdir").symlink_to(home)
    (project / "build" / "link-home").symlink_to(home)
    return project


def judge_in(project: Path, home: Path) -> Judge:
    return Judge(builtin_rules(), PathClassifier(home=str(home), cwd=str(project)))


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def _git(directory: Path, *words: str) -> None:
    subprocess.run(["git", "-C", str(directory), *words], check=True, capture_output=True, timeout=60)
