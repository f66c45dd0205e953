"""System and home directories that every sandbox shows: they contain programs and packages, not settings.

A directory belongs here if programs cannot work without it, it holds only downloaded or installed files, and
no tool stores credentials in it. It is shown read-only: files that a command changed there would later run
outside of the sandbox.
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
        ),  # without their daemons' sockets
        "/home/linuxbrew/.linuxbrew",
        *(
            "/var/lib/dpkg",
            "/var/lib/apt/lists",
            "/var/lib/rpm",
            "/var/lib/pacman",
            "/var/lib/ca-certificates",
        ),
        *("/var/lib/texmf", "/var/cache/fontconfig", "/var/cache/man"),
        # Programs read the number of processors and the memory size here.
        "/sys/devices/system",
    )
)
"""System paths that are shown, if they exist."""

PRIVATE_SYSTEM = {Path("/etc"): 6, Path("/opt"): 2, Path("/usr/local"): 2}
"""System directories in which files that are not world-readable are hidden, and the depth of that search."""

PROC_HIDDEN = ("keys", "timer_list", "sched_debug", "latency_stats", "kcore")
"""Entries of /proc that reveal other users' programs."""
PROC_COVERED = frozenset({"sys", "bus", "irq", "sysrq-trigger", "self", "thread-self", "net", "mounts"})
"""Entries of /proc that are read-only anyway, through Toolfold or bubblewrap, or that belong to a process."""

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
    # downloaded packages
    ".cargo/registry", ".cargo/git", "go/pkg", ".npm/_cacache", ".pnpm-store", ".m2/repository",
    ".m2/wrapper", ".gradle/caches", ".gradle/wrapper", ".gradle/jdks", ".ivy2/cache", ".ivy2/local",
    ".sbt/boot", ".konan", ".nuget/packages", ".gem/ruby", ".pub-cache/hosted", ".pub-cache/bin",
    ".hex/packages", ".mix/archives", ".mix/elixir", ".julia/artifacts", ".julia/packages",
    ".julia/compiled", ".julia/registries", ".cabal/packages", ".cabal/bin", ".cabal/store",
    ".stack/programs", ".stack/snapshots", ".stack/pantry", ".conda/pkgs", ".conda/envs", "nltk_data",
)  # fmt: skip
"""Paths below the home directory that are shown, if they exist."""

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
"""Directories below `~/.cache` that are shown, completely or only the listed subdirectories."""

CREDENTIALS = (
    # inside directories of HOME
    ".nvm/.npmrc", ".nvm/versions/node/*/etc/npmrc", ".fnm/node-versions/*/installation/etc/npmrc",
    ".volta/tools/image/node/*/etc/npmrc", ".nodenv/versions/*/etc/npmrc", ".local/share/pnpm/auth.ini",
    ".local/share/pnpm/global/*/.npmrc", ".local/share/fnm/node-versions/*/installation/etc/npmrc",
    ".asdf/installs/nodejs/*/etc/npmrc", ".local/share/mise/installs/node/*/etc/npmrc",
    ".pyenv/versions/*/pip.conf", "miniconda3/.condarc", "anaconda3/.condarc", "miniforge3/.condarc",
    "mambaforge/.condarc", ".local/share/pypoetry/auth.toml", ".gradle/caches/*/credentials",
    ".rbenv/versions/*/.gem/credentials",
    # relevant if a parent directory was added in the settings
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
"""Paths and patterns below the home directory that stay hidden in visible directories."""


def find_credentials(home: Path) -> Iterator[Path]:
    """Yield the known locations of credentials below a home directory."""
    for name in CREDENTIALS:
        if "*" in name:
            yield from home.glob(name)
        else:
            yield home / name
