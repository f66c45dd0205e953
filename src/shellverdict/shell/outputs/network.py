"""Recognise programs whose output comes from another machine, such as curl."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from shellverdict.shell.runs import ProgramRun

__all__ = ["has_network_output"]

_NETWORK_PROGRAMS = frozenset(
    [
        "curl",
        "wget",
        "wget2",
        "nc",
        "ncat",
        "netcat",
        "ssh",
        "http",
        "https",
        "httpie",
        "xh",
        "ftp",
        "tftp",
        "lynx",
        "links",
        "links2",
        "elinks",
        "w3m",
        "fetch",
        "scp",
        "sftp",
        "aria2c",
        "axel",
        "lwp-request",
        "GET",
        "POST",
        "telnet",
        "rsh",
        "socat",
        "curlie",
        "wcurl",
        "xhs",
        "rclone",
        "s3cmd",
        "s4cmd",
        "mc",
        "gsutil",
        "smbclient",
        "lftp",
        "nslookup",
        "dig",
        "host",
        "drill",
        "finger",
        "whois",
        "openssl-s_client",
        "websocat",
        "wscat",
        "grpcurl",
        "iwr",
        "irm",
        "certutil",
        "bitsadmin",
    ]
)
_NETWORK_SUBCOMMANDS: Mapping[str, tuple[frozenset[str], ...]] = MappingProxyType(
    {
        "aws": (
            frozenset({"s3", "s3api", "ssm", "secretsmanager"}),
            frozenset({"cp", "get-object", "get-parameter", "get-secret-value"}),
        ),
        "gh": (frozenset({"gist", "api", "release"}), frozenset({"view", "download", "*"})),
        "glab": (frozenset({"snippet", "api"}), frozenset({"view", "*"})),
        "gcloud": (frozenset({"storage"}), frozenset({"cat", "cp"})),
        "az": (frozenset({"storage"}), frozenset({"blob", "file"})),
        "kubectl": (frozenset({"exec", "cp"}), frozenset({"*"})),
        "openssl": (frozenset({"s_client"}), frozenset({"*"})),
        "docker": (frozenset({"exec", "run", "cp"}), frozenset({"*"})),
        "ipfs": (frozenset({"cat", "get"}), frozenset({"*"})),
        "git": (frozenset({"archive"}), frozenset({"--remote"})),
        "busybox": (frozenset({"wget", "nc", "tftp"}), frozenset({"*"})),
        "redis-cli": (frozenset({"get", "GET"}), frozenset({"*"})),
    }
)


def has_network_output(run: ProgramRun) -> bool:
    """Return True if the output of a program comes from another machine."""
    if run.name in _NETWORK_PROGRAMS:
        return not any(word in ("--version", "--help", "-V") for word in run.argv[1:])
    levels = _NETWORK_SUBCOMMANDS.get(run.name)
    if levels is None:
        return False
    operands = [word for word in run.argv[1:] if word[:1] != "-"]
    first, then = levels
    if run.name == "git":
        return operands[:1] == ["archive"] and any(word.startswith("--remote") for word in run.argv)
    return (
        bool(operands)
        and operands[0] in first
        and ("*" in then or (len(operands) > 1 and operands[1] in then))
    )
