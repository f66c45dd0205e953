import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { finishLogin, get, isDemo, post, showDemo, signIn, signOut, whenSignedOut } from "./api";
import { Problem } from "./components";
import { Icon } from "./icons";
import { startLive, useLive } from "./live";
import { ActivityPage } from "./pages/activity";
import { ApprovalsPage } from "./pages/approvals";
import { CatalogPage } from "./pages/catalog";
import { ChatPage } from "./pages/chat";
import { ClientsPage } from "./pages/clients";
import { EvaluationPage } from "./pages/evaluation";
import { OverviewPage } from "./pages/overview";
import { OwnPage } from "./pages/own";
import { PlaygroundPage } from "./pages/playground";
import { ServersPage } from "./pages/servers";
import { UsersPage } from "./pages/users";
import { Link, useRoute } from "./router";

const PAGES: [string, string][] = [
  ["overview", "Overview"],
  ["catalog", "Catalog"],
  ["servers", "Servers"],
  ["clients", "Clients"],
  ["users", "Users"],
  ["playground", "Playground"],
  ["evaluation", "Evaluation"],
  ["activity", "Activity"],
  ["approvals", "Approvals"],
  ["chat", "Chat"],
];

type Theme = "auto" | "light" | "dark";

function ThemeSwitch() {
  const [theme, setTheme] = useState<Theme>((localStorage.getItem("toolfold-theme") as Theme) ?? "auto");
  const next: Theme = theme === "auto" ? "light" : theme === "light" ? "dark" : "auto";
  const choose = () => {
    setTheme(next);
    localStorage.setItem("toolfold-theme", next);
    if (next === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
  };
  return (
    <button type="button" class="icon-button" onClick={choose} aria-label={`Theme: ${theme}. Switch to ${next}.`} title={`Theme: ${theme}`}>
      <Icon name={theme === "auto" ? "auto" : theme === "light" ? "sun" : "moon"} />
    </button>
  );
}

function Shell({ onLeave }: { onLeave: () => void }) {
  const route = useRoute();
  const live = useLive();
  const [isOpen, setOpen] = useState(false);
  useEffect(startLive, []);
  useEffect(() => setOpen(false), [route.page]);
  return (
    <div class="shell">
      <a class="skip" href="#main">Skip to the content</a>
      <header class="side">
        <div class="brand">
          <img src="/ui/icon.svg" alt="" width="28" height="28" />
          <span>Toolfold</span>
          <button type="button" class="icon-button menu-button" aria-label="Menu" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
            <Icon name={isOpen ? "close" : "menu"} />{live.approvals.length > 0 && <i class="alert-dot" />}
          </button>
        </div>
        <div class={`side-body ${isOpen ? "open" : ""}`}>
          <nav aria-label="Pages">
            {PAGES.map(([page, title]) => (
              <Link key={page} to={page} current={route.page === page}>
                <Icon name={page} /><span>{title}</span>
                {page === "approvals" && live.approvals.length > 0 && <b class="count">{live.approvals.length}</b>}
              </Link>
            ))}
          </nav>
          <div class="side-foot">
            <span class={`status ${live.connected ? "on" : ""}`} role="status">{live.connected ? "Connected" : "Not connected"}</span>
            <ThemeSwitch />
            <button type="button" class="icon-button" aria-label="Sign out" title="Sign out" onClick={() => signOut().then(onLeave)}><Icon name="out" /></button>
          </div>
        </div>
      </header>
      <main id="main">
        {isDemo() && <div class="banner demo"><span>Demo data: sample tools with simulated services, and a made-up usage history.</span><button type="button" class="link" onClick={() => showDemo(false)}>Show my own</button></div>}
        {route.page !== "approvals" && live.approvals.length > 0 && (
          <div class="banner" role="alert"><span>{live.approvals.length === 1 ? "A call waits" : `${live.approvals.length} calls wait`} for your approval.</span><Link to="approvals">Decide</Link></div>
        )}
        <CurrentPage page={route.page} detail={route.detail} />
      </main>
    </div>
  );
}

function CurrentPage({ page, detail }: { page: string; detail: string }) {
  switch (page) {
    case "catalog":
      return <CatalogPage detail={detail} />;
    case "playground":
      return <PlaygroundPage />;
    case "evaluation":
      return <EvaluationPage />;
    case "activity":
      return <ActivityPage />;
    case "approvals":
      return <ApprovalsPage />;
    case "servers":
      return <ServersPage />;
    case "clients":
      return <ClientsPage />;
    case "users":
      return <UsersPage />;
    case "chat":
      return <ChatPage detail={detail} />;
    default:
      return <OverviewPage />;
  }
}

function SignInPage({ needsToken, hasLogin, onEnter }: { needsToken: boolean; hasLogin: boolean; onEnter: () => void }) {
  const [code, setCode] = useState(() => new URLSearchParams(location.hash.slice(1)).get("code") ?? "");
  const [login] = useState(() => new URLSearchParams(location.hash.slice(1)).get("login") ?? "");
  const [token, setToken] = useState("");
  const [asksToken, setAsksToken] = useState(needsToken);
  const [error, setError] = useState<unknown>(null);
  const [isPrinted, setPrinted] = useState(false);
  const enter = () =>
    signIn(code, token).then(onEnter, (problem) => {
      setError(problem);
      if (problem.status === 401) setCode("");
      // Toolfold could not find out which program made the request, for example behind a tunnel.
      if (problem.status === 403) setAsksToken(true);
    });
  useEffect(() => {
    document.title = "Sign in · Toolfold";
    history.replaceState(null, "", location.pathname);
    if (login) finishLogin(login).then(onEnter, setError);
    else if (code && !needsToken) void enter();
    const read = () => {
      const found = new URLSearchParams(location.hash.slice(1)).get("code");
      if (found) location.reload();
    };
    addEventListener("hashchange", read);
    return () => removeEventListener("hashchange", read);
  }, []);
  const print = () => post("new-link").then(() => {
    setPrinted(true);
    setError(null);
  }, setError);
  return (
    <main class="sign-in">
      <div class="card">
        <img src="/ui/icon.svg" alt="" width="44" height="44" />
        <h1>Sign in to Toolfold</h1>
        <Problem error={error} />
        {code && asksToken ? (
          <form onSubmit={(event) => { event.preventDefault(); void enter(); }}>
            <label class="field"><span>Token</span><input type="password" autocomplete="off" required value={token} onInput={(event) => setToken(event.currentTarget.value)} /></label>
            <p class="muted">{needsToken ? "This address can be reached from other machines, so a token is needed too." : "A token is needed too. It must not be limited to some tools, and must belong to an administrator or to no user: toolfold token add NAME"}</p>
            <button type="submit" class="primary">Sign in</button>
          </form>
        ) : (
          <>
            {hasLogin && <p><a class="button primary" href="/ui/oidc/login">Log in</a></p>}
            <p>{hasLogin && "Or: "}Open the link that Toolfold printed in the terminal. It can be used once, within ten minutes. Each tab signs in by itself.</p>
            <button type="button" class={hasLogin ? "" : "primary"} onClick={print}>Print a new link in the terminal</button>
            {isPrinted && <p role="status" class="good-text">A new link was printed in the terminal where Toolfold runs.</p>}
          </>
        )}
      </div>
    </main>
  );
}

function App() {
  const [state, setState] = useState<"loading" | "in" | "out">("loading");
  const [isLimited, setLimited] = useState(false);
  const [needsToken, setNeedsToken] = useState(false);
  const [hasLogin, setHasLogin] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const greet = () =>
    get<{ signed_in: boolean; needs_token: boolean; has_login: boolean; is_limited: boolean }>("hello").then((hello) => {
      setLimited(hello.is_limited);
      setNeedsToken(hello.needs_token);
      setHasLogin(hello.has_login);
      setState(hello.signed_in ? "in" : "out");
      if (hello.signed_in && location.hash) history.replaceState(null, "", location.pathname);
    }, setError);
  useEffect(() => {
    whenSignedOut(() => setState("out"));
    void greet();
  }, []);
  if (error) return <main class="sign-in"><Problem error={error} /></main>;
  if (state === "loading") return <p class="loading">Loading…</p>;
  if (state === "out") return <SignInPage needsToken={needsToken} hasLogin={hasLogin} onEnter={() => void greet()} />;
  if (isLimited) return <OwnPage onLeave={() => setState("out")} />;
  return <Shell onLeave={() => setState("out")} />;
}

render(<App />, document.getElementById("app")!);
