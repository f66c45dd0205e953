#!/bin/sh
# Runs every test, then those that failed once more, one at a time: beside others on a busy machine a real
# server or container is sometimes too late, while what is broken is broken also alone. The first report stays
# above, so that a test that needs the second run is seen and can be mended.
# $1 the pytest to run
set -u
pytest=$1
some_failed=1
workers=$((2 * $(getconf _NPROCESSORS_ONLN || echo 1))) # most tests wait for another process

"$pytest" -n "$workers"
code=$?
[ "$code" -eq "$some_failed" ] || exit "$code"
echo "Some tests failed. They run once more, alone; the first that fails again ends it."
exec "$pytest" --last-failed --last-failed-no-failures none --exitfirst --verbose
