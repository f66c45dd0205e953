"""Credential files of common programs, to be created in a fake home directory."""

from __future__ import annotations

from pathlib import Path

MARKER = "planted-credential"

CREDENTIALS = (
    ".ssh/id_ed25519", ".ssh/id_rsa", ".ssh/config", ".ssh/known_hosts", ".ssh/authorized_keys",
    ".gnupg/secring.gpg", ".gnupg/private-keys-v1.d/key.key", ".gnupg/S.gpg-agent.conf",
    ".aws/credentials", ".aws/config", ".aws/sso/cache/token.json", ".azure/accessTokens.json",
    ".azure/msal_token_cache.json", ".config/gcloud/credentials.db",
    ".config/gcloud/application_default_credentials.json", ".config/gcloud/access_tokens.db",
    ".kube/config", ".kube/cache/oidc.json", ".docker/config.json", ".config/containers/auth.json",
    ".config/helm/repositories.yaml", ".npmrc", ".yarnrc", ".yarnrc.yml",
    ".config/configstore/firebase-tools.json", ".config/pnpm/rc", ".bunfig.toml", ".pypirc",
    ".config/pip/pip.conf", ".pip/pip.conf", ".config/pypoetry/auth.toml", ".config/uv/uv.toml",
    ".local/share/uv/credentials/credentials.toml", ".cargo/credentials", ".cargo/credentials.toml",
    ".cargo/config.toml", ".gem/credentials", ".bundle/config", ".m2/settings.xml",
    ".m2/settings-security.xml", ".gradle/gradle.properties", ".gradle/init.gradle",
    ".nuget/NuGet/NuGet.Config", ".composer/auth.json", ".config/composer/auth.json",
    ".hex/hex.config", ".pub-cache/credentials.json", ".config/dart/pub-credentials.json",
    ".ivy2/.credentials", ".sbt/1.0/credentials.sbt", ".cabal/config", ".condarc",
    ".conda/.condarc", "miniconda3/.condarc", ".julia/secrets.toml", ".nvm/.npmrc",
    ".nvm/versions/node/v22.0.0/etc/npmrc", ".pyenv/versions/3.11.7/pip.conf", ".deno/.npmrc",
    ".local/share/pnpm/auth.ini", ".netrc", ".git-credentials", ".gitconfig",
    ".config/git/credentials", ".config/git/config", ".config/gh/hosts.yml", ".config/hub",
    ".config/glab-cli/config.yml", ".pgpass", ".my.cnf", ".mylogin.cnf", ".s3cfg", ".boto",
    ".vault-token", ".terraform.d/credentials.tfrc.json", ".terraformrc",
    ".config/rclone/rclone.conf", ".config/op/config", ".config/doctl/config.yaml",
    ".config/hcloud/cli.toml", ".fly/config.yml", ".config/ngrok/ngrok.yml", ".netlify/config.json",
    ".config/vercel/auth.json", ".heroku/token", ".config/heroku/token", ".databrickscfg",
    ".snowflake/config.toml", ".modal.toml", ".kaggle/kaggle.json", ".huggingface/token",
    ".cache/huggingface/token", ".cache/huggingface/stored_tokens", ".config/wandb/settings",
    ".ngc/config", ".openai/key", ".anthropic/key", ".config/openai/auth.json",
    ".wasmer/wasmer.toml", ".android/adbkey", ".password-store/mail.gpg",
    ".local/share/keyrings/login.keyring", ".local/share/kwalletd/kdewallet.kwl",
    ".config/keepassxc/keepassxc.ini", "Passwords.kdbx", ".mozilla/firefox/a.default/logins.json",
    ".mozilla/firefox/a.default/cookies.sqlite", ".thunderbird/a.default/logins.json",
    ".config/google-chrome/Default/Cookies", ".config/chromium/Default/Cookies",
    ".config/BraveSoftware/Brave-Browser/Default/Cookies", ".config/microsoft-edge/Default/Cookies",
    "snap/firefox/common/.mozilla/firefox/a.default/logins.json", ".var/app/org.app/config/token",
    ".claude.json", ".claude/.credentials.json", ".claude/settings.json",
    ".config/Claude/claude_desktop_config.json", ".cursor/mcp.json", ".config/Code/User/mcp.json",
    ".config/Code/User/settings.json", ".config/VSCodium/User/mcp.json", ".vscode/mcp.json",
    ".vscode-server/data/token", ".codex/auth.json", ".codex/config.toml", ".gemini/settings.json",
    ".gemini/oauth_creds.json", ".config/opencode/opencode.json", ".local/share/opencode/auth.json",
    ".codeium/windsurf/mcp_config.json", ".config/goose/config.yaml", ".config/goose/secrets.yaml",
    ".config/zed/settings.json", ".continue/config.json", ".aider.conf.yml",
    ".config/github-copilot/hosts.json", ".lmstudio/mcp.json", ".qwen/settings.json",
    ".bash_history", ".zsh_history", ".python_history", ".node_repl_history", ".psql_history",
    ".mysql_history", ".lesshst", ".local/share/fish/fish_history", ".bashrc", ".zshrc", ".profile",
    ".bash_profile", ".zshenv", ".config/fish/config.fish", ".config/environment.d/keys.conf",
    ".env", ".env.local", "projects/other/.env", "projects/other/secrets.yaml",
    "Documents/passwords.txt", "Downloads/id_rsa", ".Xauthority", ".ICEauthority",
    ".config/pulse/cookie", ".dbus/session-bus/token", ".config/weechat/irc.conf", ".msmtprc",
    ".fetchmailrc", ".muttrc", ".config/toolfold/config.yaml",
    ".config/toolfold/tokens/server.json", ".local/state/toolfold/approvals.jsonl",
    ".cache/toolfold/index.db",
)  # fmt: skip


def plant(home: Path) -> list[Path]:
    """Create all credential files in a home directory, each with the marker in it."""
    files = [home / name for name in CREDENTIALS]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{MARKER} {file.name}")
    return files
