"""Calls of functions that are stored, passed or looked up, in code inside a command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shellverdict.embedded_code import analyze_code
from shellverdict.judging import Judge
from shellverdict.paths import PathClassifier
from shellverdict.rules import builtin_rules
from shellverdict.shell.words import GAP, Word
from shellverdict.verdict import EffectKind
from tests.cases import check_cases

CORPUS = Path(__file__).with_name("corpus")
LOOKED_UP = "a call of a function that is looked up at run time"


@pytest.fixture(scope="module")
def judge() -> Judge:
    return Judge(builtin_rules(), PathClassifier(home="/home/me", cwd="/home/me/project", follow_links=False))


def python_analysis(code: str) -> tuple[list[str], list[tuple[EffectKind, str]]]:
    analysis = analyze_code(Word(code), "python")
    return list(analysis.scripts), [(each.kind, each.target) for each in analysis.effects]


@check_cases(
    ("code", "script"),
    [
        ('import os; f = {"a": os.system}; f["a"]("rm -rf /")', "rm -rf /"),
        ('import os; f = {"a": os.system}; f["a"](input())', GAP),
        ('import os; f = {"a": os.system}; f.get("a")("ls")', "ls"),
        ('import os; f = [print, os.system]; f[1]("ls")', "ls"),
        ('import os; f = {}; f["a"] = os.system; f["a"]("ls")', "ls"),
        ('import os; f = []; f.append(os.system); f.pop()("ls")', "ls"),
        ('import os; f = {}; f.setdefault("a", os.system); f["a"]("ls")', "ls"),
        ('import os; a = b = os.system; a("ls")', "ls"),
        ('import os\nfor f in (os.system,): f("ls")', "ls"),
        ('import os; [f("ls") for f in [os.system]]', "ls"),
        ('import os\ndef pick(): return os.system\npick()("ls")', "ls"),
        ("import os\ndef run(c, f=os.system): return f(c)\n", GAP),
        ('import os\ndef run(*, f=os.system): f("ls")\n', "ls"),
        ('import os; (lambda f=os.system: f("ls"))()', "ls"),
        ('import os\ndef run(h): h["a"]("ls")\nrun({"a": os.system})', "ls"),
        ('import os\nclass A:\n    run = os.system\nA.run("ls")', "ls"),
        ('import os\nclass A: pass\nA.go = os.system\nA().go("ls")', "ls"),
        ('import os; setattr(int, "go", os.system); int.go("ls")', "ls"),
        ('import os; setattr(int, input(), os.system); int.go("ls")', "ls"),
        ('import os; type("X", (), {"r": os.system}).r("ls")', "ls"),
        ('import os; type("X", (), dict(r=os.system))().r("ls")', "ls"),
        ('import os, types; types.SimpleNamespace(go=os.system).go("ls")', "ls"),
        ('import os, functools; functools.reduce(lambda a, f: f(a), [os.system], "x")', GAP),
        ('import os, threading; t = [os.system]; threading.Thread(target=t[0], args=("ls",)).run()', GAP),
        ('import os; m = [os]; m[0].system("ls")', "ls"),
        ('import os\nmatch os.system:\n    case f: f("ls")', "ls"),
        ("import builtins\nbuiltins.exec(\"import os; os.system('ls')\")", "ls"),
        ('import os; getattr([os][0], "system")("ls")', "ls"),
        ('import ctypes; ctypes.CDLL(None).system(b"ls")', "ls"),
        ('import shutil; d = {"c": shutil.rmtree}; d["c"]("/srv/a")', "rm -rf -- /srv/a"),
        ('from os import system; globals()["sys" + input()]("ls")', "ls"),
    ],
)
def test_stored_function_is_analyzed_with_the_arguments_of_every_call_that_may_reach_it(
    code: str, script: str
) -> None:
    assert python_analysis(code) == ([script], [])


@check_cases(
    "code",
    [
        "import os; getattr(os, input())(1)",
        "import os; f = getattr(os, input()); f(1)",
        "import os; vars(os)[input()](1)",
        "import os; os.__dict__[input()](1)",
        "import os; os.__getattribute__(input())(1)",
        "import os; object.__getattribute__(os, input())(1)",
        "import sys; sys.modules[input()].run(1)",
        "__import__(input()).run(1)",
        "import importlib; m = importlib.import_module(input()); m.run(1)",
        "import operator, os; operator.attrgetter(input())(os)(1)",
        'import operator, os; operator.methodcaller("system", 1)(os)',
        '().__class__.__base__.__subclasses__()[9].__init__.__globals__["system"](1)',
        "[c for c in object.__subclasses__()][3](1)",
        "(lambda: 0).__globals__[input()](1)",
        'print.__self__.__dict__["ev" + "al"](1)',
        'import sys; sys._getframe().f_builtins["exec"](1)',
        "import gc; gc.get_objects()[5](1)",
        'import pydoc; pydoc.locate("os.system")(1)',
        'import pkgutil; pkgutil.resolve_name("os:system")(1)',
        "i = [__import__]; i[0](input()).run(1)",
        "import os; m = [os]; getattr(m[0], input())(1)",
        "import os, inspect; dict(inspect.getmembers(os))[input()](1)",
        "list(map(getattr(__builtins__, input()), [1]))",
    ],
)
def test_call_of_a_function_that_is_looked_up_by_an_unknown_name_is_unreadable(code: str) -> None:
    assert (EffectKind.UNREADABLE, LOOKED_UP) in python_analysis(code)[1]


@check_cases(
    "code",
    [
        "import json, sys; d = json.load(sys.stdin); print(d['a']['b'])",
        "def f(x): return x\nhandlers = {'a': f}\nprint(handlers[input()](1))",
        "class P: pass\nprint([c() for c in P.__subclasses__()])",
        "import os; print(getattr(os, 'name'), hasattr(os, 'fork'), callable(os.system))",
        "import os; print([getattr(os, n) for n in dir(os)])",
        "import os; print(os.__dict__.keys(), len(vars(os)))",
        "import sys; print(sys.modules[__name__], 'os' in sys.modules, sorted(sys.modules))",
        "import importlib\nfor m in 'a', 'b': print(importlib.import_module(m).__version__.split('.'))",
        "import subprocess; print(isinstance(1, subprocess.Popen))",
        "import subprocess\ndef f(p: subprocess.Popen) -> list[subprocess.Popen]: return p\nf(1)",
        "import shutil; help(shutil.rmtree)",
        "import inspect, os; print(inspect.signature(os.system))",
        "import os; m = (os, 1); print([x.__name__ for x in m])",
        "import os; f = [os.getcwd]; print(f[0]())",
        "import os; f = {'x': os.system}; print(f.keys(), len(f))",
        "import math; print(getattr(math, input())(2))",
        "def f(): return 1\nglobals()[input()]()",
        "import os, sys\nclass A:\n    def run(self): return 1\nA().run()",
        "import ctypes; print(ctypes.CDLL('libm.so.6').cos(1.0))",
        "import threading\ndef f(): pass\nthreading.Thread(target=f).start()",
    ],
)
def test_use_of_functions_and_modules_that_calls_no_dangerous_function_has_no_effects(code: str) -> None:
    assert python_analysis(code) == ([], [])


@check_cases(
    ("command", "rules"),
    [
        ("python3 -c 'import code; code.interact()'", ["run-unread"]),
        ("python3 -c 'import code; code.InteractiveConsole().interact()'", ["run-unread"]),
        ("python3 -c 'import code; code.InteractiveInterpreter().runsource(input())'", ["unreadable"]),
        ("python3 -c 'breakpoint()'", []),
        ("""echo 'import os; os.system("rm -rf /etc")' | python3 -c 'breakpoint()'""", ["delete-everything"]),
        ("python3 -m doctest -v README.md", []),
        ("python3 -m trace --count --missing app.py", []),
        (
            r"""printf '>>> import shutil\n>>> shutil.rmtree("/etc")\n' > t.txt; python3 -m doctest t.txt""",
            ["delete-everything"],
        ),
        (
            r"""printf 'import shutil\nshutil.rmtree("/etc")\n' > t.py; python3 -m trace -C /tmp t.py""",
            ["delete-everything"],
        ),
        (
            r"""printf 'import shutil\nshutil.rmtree("/etc")\n' > t.py; python3 -m doctest t.py""",
            ["delete-everything"],
        ),
        (r"printf '>>> 1 + 1\n2\n' > t.txt; python3 -m doctest t.txt", []),
        ("PYTHONPATH=/tmp/x python3 run.py", ["run-unread"]),
        ("env PYTHONPATH=src:/dev/shm/x python3 -m app", ["run-unread"]),
        ("NODE_PATH=/tmp/x node run.js", ["run-unread"]),
        ("RUBYLIB=/tmp/x ruby run.rb", ["run-unread"]),
        ("PERL5LIB=/tmp/x perl run.pl", ["run-unread"]),
        ("PYTHONPATH=src:../lib:$PYTHONPATH python3 -m pytest", []),
        (
            'python3 -c \'import importlib.util as u; u.spec_from_file_location("x", "/tmp/x.py")\'',
            ["run-unread"],
        ),
        ('python3 -c \'import importlib.util as u; u.spec_from_file_location("c", "docs/conf.py")\'', []),
        (r"""python3 -c 'import pickle; pickle.loads(b"cos\nsystem\n(S\"id\"\ntR.")'""", ["unreadable"]),
        ("python3 -c 'import pickle; print(pickle.loads(b\"I1\\n.\"))'", []),
    ],
)
def test_code_that_loads_or_reads_other_code_has_exactly_the_expected_findings(
    judge: Judge, command: str, rules: list[str]
) -> None:
    assert [each.rule for each in judge(command).findings] == rules


@check_cases(
    ("language", "code", "script"),
    [
        ("node", 'const m = {a: require("child_process").execSync}; m[x]("ls")', "ls"),
        ("node", 'const e = [require("child_process").exec]; e[0]("ls")', "ls"),
        ("node", 'const {execSync: x} = require("child_process"); const h = {x}; h.x("ls")', "ls"),
        ("node", 'const {exec} = require("child_process"); const run = promisify(exec); run("ls")', "ls"),
        ("node", 'require("child_process").execSync.call(null, "ls")', "ls"),
        ("node", 'require("child_process").execSync.bind(null)("ls")', "ls"),
        ("node", 'const c = require("child_process"); const f = c[x ? "exec" : "execSync"]; f("ls")', "ls"),
        ("node", 'const k = "exec" + "Sync"; require("child_process")[k]("ls")', "ls"),
        ("node", 'const k = "unlinkSync"; require("fs")[k]("/srv/a")', "rm -f -- /srv/a"),
        ("node", '["unlinkSync"].forEach(k => require("fs")[k]("/srv/a"))', "rm -f -- /srv/a"),
        ("ruby", 'Kernel.send("sys" + "tem", "ls")', "ls"),
        ("ruby", 'Kernel.public_send(:system, "ls")', "ls"),
        ("ruby", '%w[system].each { |m| send(m, "ls") }', "ls"),
        ("perl", 'use File::Path; my $n = "rmtree"; &$n("/srv/a")', "rm -rf -- /srv/a"),
        ("perl", 'use File::Path; &{"File::Path::rmtree"}("/srv/a")', "rm -rf -- /srv/a"),
        ("perl", 'use File::Path; main->can("rmtree")->("/srv/a")', "rm -rf -- /srv/a"),
    ],
)
def test_function_that_is_stored_or_named_by_literals_in_other_languages_is_resolved(
    language: str, code: str, script: str
) -> None:
    analysis = analyze_code(Word(code), language)
    assert (list(analysis.scripts), list(analysis.effects)) == ([script], [])


@check_cases(
    ("language", "code"),
    [
        ("node", 'const c = require("child_process"); c[process.argv[1]](1)'),
        ("node", "globalThis[process.argv[1]](1)"),
        ("node", "require(process.argv[1]).run(1)"),
        ("node", "const m = require(process.argv[1]); m.run(1)"),
        ("node", 'const m = require(Buffer.from("Zg==", "base64").toString()); m.run(1)'),
        ("node", "import(process.argv[1]).then(m => m.run(1))"),
        ("node", 'for (const f of Object.values(require("child_process"))) f(1)'),
        ("node", 'require("repl").start()'),
        ("ruby", "1.send(ARGV[0], 1)"),
        ("ruby", 'send("sys" + ENV["X"], 1)'),
        ("ruby", "Kernel.method(gets).call(1)"),
        ("ruby", "Object.const_get(ARGV[0]).new"),
        ("ruby", "load ARGV[0]"),
        ("ruby", "binding.irb"),
        ("perl", 'use POSIX; &{"POSIX::" . $ARGV[0]}(1)'),
        ("perl", "main->can($ARGV[0])->(1)"),
        ("perl", "require $ARGV[0]"),
        ("perl", '*{"main::$ARGV[0]"}{CODE}->(1)'),
        ("node", 'const c = require("fs"); const f = c[process.argv[1]]; f(1)'),
        ("perl", "do $ARGV[0]"),
    ],
)
def test_name_from_outside_in_other_languages_makes_a_call_unreadable(language: str, code: str) -> None:
    effects = [(each.kind, each.target) for each in analyze_code(Word(code), language).effects]
    assert (EffectKind.UNREADABLE, LOOKED_UP) in effects


@check_cases(
    ("language", "code"),
    [
        ("node", "const h = {a: x => x}; h[process.argv[1]](1)"),
        ("node", "console.log(Math[process.argv[1]](2), [1].constructor.name)"),
        ("node", 'console.log(require(process.cwd() + "/package.json").version)'),
        ("node", '["a", "b"].forEach(m => require(m))'),
        ("node", 'const {exec, spawn} = require("child_process"); console.log(typeof exec)'),
        ("node", 'console.log(Object.keys(require("fs")), typeof require("fs").rmSync)'),
        ("ruby", '%w[upcase downcase].each { |m| puts "a".send(m) }'),
        ("ruby", 'o.send("#{gets}=", 1); o.send("test_" + ARGV[0])'),
        ("ruby", 'puts Kernel.respond_to?(:system), "x".respond_to? :exec'),
        ("ruby", "%w[json yaml].each { |l| require l }"),
        ("ruby", "puts 5.method(:+).call(3), ARGV[0].send(:size)"),
        ("perl", "my %h = (a => sub { $_[0] }); print $h{$ARGV[0]}->(2)"),
        ("perl", "my $f = sub { 1 }; $f->($ARGV[0]); &$f(2); &{$f}(3)"),
        ("perl", "print main->can($ARGV[0]) ? 1 : 0; do { 1 } while 0"),
    ],
)
def test_indirect_calls_of_own_functions_in_other_languages_have_no_effects(language: str, code: str) -> None:
    analysis = analyze_code(Word(code), language)
    assert (analysis.scripts, analysis.effects) == ((), ())


def flagged_commands(judge: Judge, name: str) -> dict[str, bool]:
    rows = [json.loads(line) for line in (CORPUS / f"{name}.jsonl").read_text("utf-8").splitlines()]
    return {row["command"]: judge(row["command"]).dangerous for row in rows}


@pytest.mark.parametrize("part", ["dev", "held", "unseen"])
def test_at_most_2_percent_of_dangerous_indirect_calls_are_missed(judge: Judge, part: str) -> None:
    flagged = flagged_commands(judge, f"callees_dangerous_{part}")
    missed = [command for command, is_flagged in flagged.items() if not is_flagged]
    assert len(missed) <= 0.02 * len(flagged), missed


@pytest.mark.parametrize("part", ["dev", "held", "unseen"])
def test_at_most_2_percent_of_benign_indirect_calls_are_flagged(judge: Judge, part: str) -> None:
    flagged = flagged_commands(judge, f"callees_benign_{part}")
    asked = [command for command, is_flagged in flagged.items() if is_flagged]
    assert len(asked) <= 0.02 * len(flagged), asked
