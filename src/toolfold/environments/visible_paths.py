"""Which parts of the system and of a home folder every sandbox shows: programs and packages, no settings.

A folder belongs here if programs cannot work without it, it holds only what was downloaded or installed, and
no tool keeps credentials in it. It is shown for reading only: what a command could change there would run
outside of the sandbox later.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

SYSTEM = tuple(
    Path(path)
    for path in (
        *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt"),
        *(
            "/nix/store",
            "/nix/var/nix/profiles",
            "/gnu/store",
            "/var/guix/profiles",
        ),  # not their daemons' sockets
        "/home/linuxbrew/.linuxbrew",
        *(
            "/var/lib/dpkg",
            "/var/lib/apt/lists",
            "/var/lib/rpm",
            "/var/lib/pacman",
            "/var/lib/ca-certificates",
        ),
        *("/var/lib/texmf", "/var/cache/fontconfig", "/var/cache/man"),
        # By these programs learn how many processors and how much memory they have.
        "/sys/devices/system",
    )
)
"""Paths of the system that are shown, where they exist."""

PRIVATE_SYSTEM = {Path("/etc"): 6, Path("/opt"): 2, Path("/usr/local"): 2}
"""Folders of the system in which files that not everybody may read are hidden, to this depth."""

PROC_HIDDEN = ("keys", "timer_list", "sched_debug", "latency_stats", "kcore")
"""Below /proc: what tells about other users' programs."""
PROC_COVERED = frozenset({"sys", "bus", "irq", "sysrq-trigger", "self", "thread-self", "net", "mounts"})
"""Below /proc: what is always made read-only, by us or by bubblewrap, or belongs to a process."""

HOME = (
    # version managers and toolchains
    ".pyenv", ".asdf", ".nvm", ".fnm", ".volta", ".nodenv", ".rbenv", ".rvm", ".jenv", ".goenv",
    ".plenv", ".phpenv", ".sdkman", ".proto", ".rustup", ".ghcup", ".elan", ".juliaup", ".swiftly",
    ".tfenv", ".opam", ".dotnet", ".g", ".n", ".local/share/mise", ".local/share/rtx",
    ".local/share/fnm", ".local/share/nvm", ".local/share/swiftly", "miniconda3", "anaconda3",
    "miniforge3", "mambaforge", "micromamba", ".pixi/bin", ".pixi/envs", ".linuxbrew",
    # installed programs
    ".local/bin", ".local/lib", ".local/pipx", ".local/share/pipx", ".local/share/uv/python",
    ".local/share/uv/tools", ".local/share/pypoetry", ".local/share/virtualenvs", ".virtualenvs",
    ".local/share/gem", ".local/share/pnpm", ".npm-global/bin", ".npm-global/lib", ".bun/bin",
    ".bun/install", ".deno/bin", ".yarn/bin", ".yarn/berry/cache", ".cargo/bin", "go/bin", "bin",
    ".poetry/bin",
    # packages that were downloaded
    ".cargo/registry", ".cargo/git", "go/pkg", ".npm/_cacache", ".pnpm-store", ".m2/repository",
    ".m2/wrapper", ".gradle/caches", ".gradle/wrapper", ".gradle/jdks", ".ivy2/cache", ".ivy2/local",
    ".sbt/boot", ".konan", ".nuget/packages", ".gem/ruby", ".pub-cache/hosted", ".pub-cache/bin",
    ".hex/packages", ".mix/archives", ".mix/elixir", ".julia/artifacts", ".julia/packages",
    ".julia/compiled", ".julia/registries", ".cabal/packages", ".cabal/bin", ".cabal/store",
    ".stack/programs", ".stack/snapshots", ".stack/pantry", ".conda/pkgs", ".conda/envs", "nltk_data",
)  # fmt: skip
"""Below the home folder: what is shown, where it exists."""

CACHES = {
    "huggingface": ("hub", "datasets", "xet"),
    "torch": ("hub",),
    "ms-playwright": (),
    "puppeteer": (),
    "Cypress": (),
    "electron": (),
    "coursier": (),
    "bazelisk": (),
    "node-gyp": (),
    "tree-sitter": (),
    "whisper": (),
}
"""Below `~/.cache`: what is shown, or only these parts of it."""

CREDENTIALS = (
    # among what HOME shows
    ".nvm/.npmrc", ".nvm/versions/node/*/etc/npmrc", ".fnm/node-versions/*/installation/etc/npmrc",
    ".volta/tools/image/node/*/etc/npmrc", ".nodenv/versions/*/etc/npmrc", ".local/share/pnpm/auth.ini",
    ".local/share/pnpm/global/*/.npmrc", ".local/share/fnm/node-versions/*/installation/etc/npmrc",
    ".asdf/installs/nodejs/*/etc/npmrc", ".local/share/mise/installs/node/*/etc/npmrc",
    ".pyenv/versions/*/pip.conf", "miniconda3/.condarc", "anaconda3/.condarc", "miniforge3/.condarc",
    "mambaforge/.condarc", ".local/share/pypoetry/auth.toml", ".gradle/caches/*/credentials",
    ".rbenv/versions/*/.gem/credentials",
    # where the whole folder around them was added
    ".config/gcloud", ".config/gh", ".config/hub", ".config/glab-cli", ".config/rclone", ".config/op",
    ".config/doctl", ".config/git", ".config/containers", ".config/google-chrome", ".config/chromium",
    ".config/BraveSoftware", ".config/microsoft-edge", ".config/Claude", ".config/Code*",
    ".config/VSCodium", ".config/Cursor", ".config/goose", ".config/opencode", ".config/zed",
    ".config/github-copilot", ".config/pip", ".config/uv", ".config/pypoetry", ".config/composer",
    ".config/configstore", ".config/helm", ".config/hcloud", ".config/ngrok", ".config/vercel",
    ".config/heroku", ".config/wandb", ".config/openai", ".config/keepassxc", ".config/environment.d",
    ".config/toolfold", ".local/share/keyrings", ".local/share/kwalletd", ".local/share/opencode",
    ".local/share/fish", ".local/share/uv/credentials", ".local/state/toolfold",
    ".cache/huggingface/token", ".cache/huggingface/stored_tokens", ".cache/toolfold",
    ".cargo/credentials", ".cargo/credentials.toml", ".cargo/config.toml", ".gem/credentials",
    ".m2/settings.xml", ".m2/settings-security.xml", ".gradle/gradle.properties", ".gradle/init.gradle",
    ".pub-cache/credentials.json", ".hex/hex.config", ".ivy2/.credentials", ".julia/secrets.toml",
    ".conda/.condarc", ".nuget/NuGet", ".cabal/config", "snap/*/common/.mozilla",
    "snap/*/common/chromium", "snap/*/current/.config",
)  # fmt: skip
"""Below the home folder: what stays hidden in folders that are shown. They may be patterns."""


def find_credentials(home: Path) -> Iterator[Path]:
    """Yield the files and folders with credentials that exist below a home folder."""
    for name in CREDENTIALS:
        if "*" in name:
            yield from home.glob(name)
        else:
            yield home / name
