#!/bin/sh
# Installs what the tests use beyond Python packages: shells, to try completion in the real ones.
# Only where this machine lets us; the tests that miss something say so and skip.
set -u
missing=""
for program in zsh fish; do
  command -v "$program" >/dev/null 2>&1 || missing="$missing $program"
done
[ -n "$missing" ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
  echo "not installed, their tests will be skipped:$missing (needs root and apt-get)"
  exit 0
fi
echo "installing$missing"
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086
{ apt-get update -qq && apt-get install -y -qq --no-install-recommends $missing; } >/dev/null 2>&1 ||
  echo "could not be installed, their tests will be skipped:$missing"
exit 0
