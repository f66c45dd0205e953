# Takes our programs from the input, each after a line with its name, and becomes the guard.
# $1 our folder · $2 what the commands of this client carry in their environment · $3, $4 as the guard has them
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
