# Functions for the scripts in this directory, which install what tests need. They print the result and never fail. An
# installation that is complete is left as it is: `.complete` has the versions that were installed.

# Prints the Python of the virtual environment that contains a directory. $1 directory
find_python() {
  found=$(dirname "$(dirname "$1")")/bin/python
  if [ -x "$found" ]; then echo "$found"; else command -v python3; fi
}

# $1 name to print, $2 directory, $3 versions to install; the others are the command that installs them
install_pinned() {
  what=$1 target=$2 want=$3
  shift 3
  if [ "$(cat "$target/.complete" 2>/dev/null)" = "$want" ]; then
    echo "$what: already installed"
    return
  fi
  rm -rf "$target" && mkdir -p "$target" || return 0
  if "$@" >"$target.log" 2>&1; then
    echo "$want" >"$target/.complete"
    echo "$what: installed"
  else
    rm -rf "$target"
    echo "$what: not available: $(grep -v '^WARNING' "$target.log" | tail -n 1)"
  fi
}

# $1 name to print, $2 directory, $3 directory with package.json and package-lock.json, $4 maximum seconds
install_npm_packages() {
  install_pinned "$1" "$2" "$(cksum <"$3/package-lock.json")" run_npm_ci "$2" "$3" "$4"
}

# $1 directory, $2 directory with package.json and package-lock.json, $3 maximum seconds
run_npm_ci() {
  command -v npm >/dev/null || { echo "npm is not installed"; return 1; }
  cp "$2/package.json" "$2/package-lock.json" "$1" &&
    (cd "$1" && timeout "$3" npm ci --prefix "$1" --ignore-scripts --no-audit --no-fund --no-update-notifier --loglevel error)
}
