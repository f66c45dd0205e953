#!/bin/sh
# Runs the tests in parallel, then the failed ones up to twice more, one at a time: on a busy machine a real server or
# container is sometimes too slow. Tests that failed first and passed alone are listed as flaky at the end.
# $1 the pytest to run; the others are options of pytest and the tests to run
set -u
pytest=$1
shift
some_failed=1
failures=.pytest_cache/v/cache/lastfailed
workers=$((2 * $(getconf _NPROCESSORS_ONLN || echo 1))) # most tests wait for another process

# One process compiles changed test files, so that not every worker does.
compiled=.pytest_cache/compiled
if [ -e "$compiled" ]; then changed=$(find tests -name 'test_*.py' -newer "$compiled"); else changed=tests; fi
if [ -n "$changed" ]; then
  "$pytest" --collect-only -qq $changed >/dev/null 2>&1 # the workers report errors
  mkdir -p .pytest_cache && touch "$compiled"
fi
# All tests of a module run in one worker, so that their servers start once. Long modules come first
# (tests/conftest.py), so that no worker is left with one at the end.
"$pytest" -n "$workers" --dist loadfile --no-loadscope-reorder "$@"
code=$?
[ "$code" -eq "$some_failed" ] || exit "$code"
flaky=$(sed -n 's/^ *"\(.*\)": true,\{0,1\}$/  \1/p' "$failures")
for attempt in first second; do
  echo "Some tests failed. Running them again, one at a time ($attempt attempt)."
  if "$pytest" --last-failed --last-failed-no-failures none --maxfail 10 --verbose "$@"; then
    echo "Flaky tests (failed in the parallel run, passed alone):"
    echo "$flaky"
    exit 0
  fi
done
exit "$some_failed"
