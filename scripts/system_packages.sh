#!/bin/sh
# Installs system packages that tests use: shells for completion, servers and sandboxes in which commands run, and interpreters
# whose behaviour is compared with the verdicts. Prints the state of each and never fails. Needs root on Debian.
set -u
max_seconds=420 # a busy machine takes minutes for a dozen packages

# name · program that shows that it is installed · packages
wanted='
zsh|zsh|zsh
fish|fish|fish
ssh|sshd|openssh-server openssh-client
docker|dockerd|docker.io
podman|podman|podman runc
sandbox|bwrap|bubblewrap
busybox|busybox|busybox-static
bash-static|bash-static|bash-static
patchelf|patchelf|patchelf
strace|strace|strace
interpreters|m4|m4 gawk lua5.4 ksh93u+m dc ed tcl expect ruby php-cli sqlite3
network-tools|socat|socat netcat-openbsd rsync
terminal|tmux|tmux
systemd|systemd-analyze|systemd
browser|chromium|chromium
speech|espeak-ng|espeak-ng
archivers|cpio|cpio zip rpm parallel
'
PATH=$PATH:/usr/sbin:/sbin

here() { command -v "$1" >/dev/null 2>&1; }
left() { echo $((max_seconds - $(date +%s) + began)); }
began=$(date +%s)

# Installed services must not be started: the tests start their own, and ports must stay free.
install() {
  rule=/usr/sbin/policy-rc.d made=
  if [ ! -e "$rule" ]; then
    trap 'rm -f "$rule"; exit 1' INT TERM
    printf '#!/bin/sh\nexit 101\n' >"$rule" && chmod +x "$rule" && made=yes
  fi
  DEBIAN_FRONTEND=noninteractive timeout "$(left)" apt-get install -y -qq --no-install-recommends \
    --no-remove -o DPkg::Lock::Timeout=30 "$@" >/dev/null 2>&1
  code=$?
  [ -z "$made" ] || rm -f "$rule"
  trap - INT TERM
  return "$code"
}

complete_installation() {
  export DEBIAN_FRONTEND=noninteractive
  timeout 120 dpkg --configure -a >/dev/null 2>&1
  timeout 120 apt-get install -y -qq --fix-broken >/dev/null 2>&1
}

missing=
packages=
for line in $(echo "$wanted" | tr ' ' ','); do
  IFS='|' read -r name program needs <<LINE
$line
LINE
  here "$program" || missing="$missing $name" packages="$packages $(echo "$needs" | tr ',' ' ')"
done

why=
if [ -n "$missing" ]; then
  if ! here apt-get; then
    why="not a Debian system, install it manually"
  elif [ "$(id -u)" != 0 ]; then
    why="installing it needs root"
  else
    echo "installing$missing"
    # An installation that was interrupted before blocks every further one until it is completed.
    [ -z "$(dpkg --audit 2>/dev/null)" ] || complete_installation
    timeout 60 apt-get update -qq >/dev/null 2>&1
    # shellcheck disable=SC2086
    install $packages || for package in $packages; do
      [ "$(left)" -gt 5 ] && install "$package"
    done
    why="its package could not be installed"
  fi
fi

for line in $(echo "$wanted" | tr ' ' ','); do
  IFS='|' read -r name program needs <<LINE
$line
LINE
  case " $missing " in *" $name "*) word=installed ;; *) word="already installed" ;; esac
  here "$program" || word="not available: $why"
  echo "$name: $word"
done
exit 0
