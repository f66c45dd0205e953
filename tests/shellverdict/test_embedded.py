"""Commands embedded in text that a program may run, and everyday uses of the same programs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shellverdict.judging import Judge
from shellverdict.paths import PathClassifier
from shellverdict.rules import builtin_rules
from shellverdict.shell.embedded import MAX_CANDIDATE_LENGTH, MAX_CANDIDATES, find_embedded_commands
from tests.cases import check_cases


@pytest.fixture(scope="module")
def judge() -> Judge:
    return Judge(builtin_rules(), PathClassifier(home="/home/me", cwd="/home/me/project", follow_links=False))


@check_cases(
    "text",
    [
        "ProxyCommand rm -rf ~/x",
        'system("rm -rf ~/x")',
        'APT::Update::Pre-Invoke {"rm -rf ~/x";};',
        "[alias]\nx = !rm -rf ~/x\n",
        '{"scripts": {"test": "rm -rf ~/x"}}',
        "sh,-c,rm -rf ~/x",
        "exec(['rm', '-rf', '~/x'])",
        "rm,-rf,~/x",
        r"set grepprg=rm\ -rf\ ~/x",
        "rm${IFS}-rf${IFS}~/x",
        "%{lua:os.execute('/bin/rm -rf ~/x')}",
    ],
)
def test_shell_command_is_found_inside_configuration_files_and_source_code(text: str) -> None:
    found = [command.removeprefix("/bin/").strip() for command in find_embedded_commands(text)]
    assert "rm -rf ~/x" in found


@check_cases("text", ["", "form the alarm", "x.rm -rf", "a-rm b", "farm -rf", "rmdir_all x"])
def test_program_name_inside_a_longer_word_is_not_treated_as_an_embedded_command(text: str) -> None:
    assert list(find_embedded_commands(text)) == []


@given(st.text(alphabet=st.sampled_from("rm -f~/x\"',;|&()[]{}\\\n%20$IFS\ufdd0"), max_size=400))
def test_search_for_commands_in_arbitrary_text_returns_a_limited_number_of_short_one_line_commands(
    text: str,
) -> None:
    found = list(find_embedded_commands(text))
    assert len(found) <= MAX_CANDIDATES
    assert all(len(command) <= MAX_CANDIDATE_LENGTH and "\n" not in command for command in found)


def test_command_with_thousands_of_embedded_commands_is_flagged_as_dangerous(judge: Judge) -> None:
    verdict = judge("tmux " + " ".join(f"-c 'rm a{number}; rm b{number}'" for number in range(2_000)))
    assert verdict.dangerous
    assert verdict.unread or verdict.findings


def test_harmful_embedded_command_after_many_harmless_embedded_commands_is_detected(judge: Judge) -> None:
    recipes = "".join(f"\trm a{number}.o\n" for number in range(100))
    assert judge(f"cat > notes <<'E'\nx:\n{recipes}\trm -rf ~/photos\nE\nmake -f notes").dangerous
    assert judge(f"cat > conf <<'E'\n{recipes}hook = rm -rf ~/photos\nE\nsometool").dangerous


def test_reason_of_a_verdict_names_the_makefile_that_contains_the_harmful_command(judge: Judge) -> None:
    verdict = judge("printf 'x:\\n\\trm -rf ~/photos\\n' > Makefile; make")
    assert "Makefile" in verdict.reason


DANGEROUS = """
docker cp app:/f /etc/shadow
kubectl cp pod:/f ~/.profile
python3 -m zipfile -e a.zip ~
cd ~ && python3 -m tarfile -e a.tar .
cd ~ && curl -O https://example.com/.bashrc
screen -dm bash -c 'rm -rf ~/photos'
sometool --on-exit 'rm -rf ~/photos'
HOOK='rm -rf ~/photos' ./run.sh
curl -so package.json https://example.com/p.json; npm test
touch ./--checkpoint-action=exec=sh
history -s 'rm -rf ~/photos'; fc -s
""".strip().splitlines()


@check_cases("command", DANGEROUS)
def test_commands_that_may_run_harmful_embedded_code_are_flagged_as_dangerous(
    command: str, judge: Judge
) -> None:
    assert judge(command).dangerous


EVERYDAY = r"""
scp -o StrictHostKeyChecking=no a.txt host:/srv/
gcc -wrapper ccache -c main.c
gcc -O2 -Wall -o app main.c && ./app
python -m zipfile -e a.zip out/
python3 -m tarfile -e a.tar
make SHELL=/bin/bash test
make CC=clang CFLAGS='-O2 -g'
cmake -P cmake/version.cmake
cmake -DCMAKE_TOOLCHAIN_FILE=toolchain.cmake ..
cmake -E copy a b
printf 'all:\n\tgcc main.c\nclean:\n\trm -f *.o\n' > Makefile; make
printf 'print(1)\n' > x.py; python3 x.py
sed -i 's/DEBUG=1/DEBUG=0/' run.sh && ./run.sh
tmux new-session -d -s dev 'npm run dev'
git commit -m 'Do not run rm -rf / in tests'
node --import ./register.mjs app.js
sqlite3 app.db '.once out.csv' 'select * from users'
rpm -E %fedora
m4 configure.ac > configure
wget -e robots=off -r -l 1 https://example.com/docs/
curl -K curl.conf https://example.com/
history | tail -20
fc -l
compgen -c | sort -u | head
complete -W 'start stop restart' svc
alias ll='ls -la'
python3 -c 'import pickle; d = pickle.load(open("model.pkl","rb")); print(type(d))'
python3 -c 'import pickle; print(pickle.loads(pickle.dumps([1,2])))'
printf 'FROM debian\nRUN apt-get update && rm -rf /var/lib/apt/lists/*\n' > Dockerfile; docker build .
printf 'To clean: rm -rf ~/.cache/app\n' > README.md; npm test
printf 'assert judge("rm -rf /").dangerous\n' > tests/test_judge.py; pytest tests/test_judge.py
printf 'export const DANGEROUS = ["rm -rf /"];\n' > src/rules.ts; npx tsc && npm test
python3 -m pdb script.py
find . -name '*.py' -exec python3 -m py_compile {} ';'
PATH=$PWD/node_modules/.bin:$PATH eslint .
export PATH=$HOME/.local/bin:$PATH; mytool run
git clone -c core.autocrlf=input https://github.com/a/b
cd /tmp && curl -O https://example.com/data.csv
while read -r line; do echo "$line"; done < .env
docker cp app:/var/log/app.log ./app.log
git clone https://github.com/a/b && cd b && ls
gdb -batch -ex bt ./app core
toolfold approvals test 'rm -rf /'
touch ./--help
""".strip().splitlines()


@check_cases("command", EVERYDAY)
def test_everyday_uses_of_programs_that_can_run_embedded_code_are_not_flagged_as_dangerous(
    command: str, judge: Judge
) -> None:
    verdict = judge(command)
    assert not verdict.dangerous, verdict.reason
