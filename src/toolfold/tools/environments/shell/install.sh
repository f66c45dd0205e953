# Installs the scripts it reads from stdin, each after a line with its name, and then replaces itself by the guard.
# $1 state directory · $2 client identifier · $3, $4 passed to the guard
umask 077
mkdir -p "$1/shell" "$1/processes" && cd "$1" || exit 1
while IFS= read -r line; do
  case $line in
    '@ ') break ;;
    '@ '*) name=${line#@ } && exec 3>"shell/$name.$$" ;;
    '@.') exec 3>&- && mv -f "shell/$name.$$" "shell/$name" || exit 1 ;;
    *) printf '%s\n' "$line" >&3 || exit 1 ;;
  esac
done
shell=$(command -v bash || command -v sh)
exec "$shell" ./shell/guard "$@"
