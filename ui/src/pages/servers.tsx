import { useState } from "preact/hooks";
import { get, post, propose } from "../api";
import { Badge, Card, Empty, Page, Problem, TryDemo, useData } from "../components";
import { plural } from "../format";
import { type ServerState, useLive } from "../live";
import { Link } from "../router";

interface Server extends ServerState {
  enabled: boolean;
  target: string;
  is_remote: boolean;
  is_own: boolean;
  trust: string;
}

interface Test {
  ok: boolean;
  problem: string;
  tools: string[];
  problems?: string[];
}

export function ServersPage() {
  const { data, error, reload } = useData<{ servers: Server[] }>("servers", {}, 5000);
  const live = useLive();
  const [isAdding, setAdding] = useState(false);
  const servers = (data?.servers ?? []).map((each) => ({ ...each, ...(each.enabled ? live.servers.find((one) => one.name === each.name) : {}) }));
  return (
    <Page title="Servers" about="MCP servers that provide tools. Changes are written to your settings and take effect at once." actions={<button type="button" class={isAdding ? "" : "primary"} aria-expanded={isAdding} onClick={() => setAdding(!isAdding)}>{isAdding ? "Cancel" : "Add a server"}</button>}>
      <Problem error={error} />
      {isAdding && <AddServer />}
      {data && (
        <Card class="flush">
          {servers.map((each) => <ServerRow key={each.name} server={each} onChange={reload} />)}
          {!servers.length && <Empty title="No MCP servers yet">Add one with the button above, or take over those of your other programs with <code>toolfold mcp import</code>.<TryDemo /></Empty>}
        </Card>
      )}
    </Page>
  );
}

function AddServer() {
  const [name, setName] = useState("");
  const [target, setTarget] = useState("");
  const [env, setEnv] = useState("");
  const [error, setError] = useState<unknown>(null);
  const [busy, setBusy] = useState(false);
  const add = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    try {
      await propose("servers/add", { name, target, env });
    } catch (problem) {
      setError(problem);
    }
    setBusy(false);
  };
  return (
    <Card title="Add a server">
      <form class="form" onSubmit={add}>
        <label class="field"><span>Name</span><input required maxLength={40} placeholder="git" value={name} onInput={(event) => setName(event.currentTarget.value)} /></label>
        <label class="field"><span>URL, or the command that starts it</span><input required class="mono" placeholder="uvx mcp-server-git" value={target} onInput={(event) => setTarget(event.currentTarget.value)} /></label>
        <label class="field whole"><span>Environment variables, one per line; {"${NAME}"} is read from your environment</span><textarea class="mono" rows={2} placeholder={"GITHUB_TOKEN=${GITHUB_TOKEN}"} value={env} onInput={(event) => setEnv(event.currentTarget.value)} /></label>
        <div class="whole"><Problem error={error} /><p class="muted">The command runs on this machine with your rights. Adding the server approves its current tools. You confirm it on the next page.</p></div>
        <div class="buttons whole"><button type="submit" class="primary" disabled={busy}>Add</button></div>
      </form>
    </Card>
  );
}

function ServerRow({ server, onChange }: { server: Server; onChange: () => void }) {
  const [test, setTest] = useState<Test | null>(null);
  const [log, setLog] = useState<string[] | null>(null);
  const [error, setError] = useState<unknown>(null);
  const [busy, setBusy] = useState("");
  const run = async (what: string, work: () => Promise<unknown>) => {
    setBusy(what);
    setError(null);
    try {
      await work();
    } catch (problem) {
      setError(problem);
    }
    setBusy("");
    onChange();
  };
  const change = (word: string) => run(word, () => propose("servers/change", { name: server.name, change: word }));
  const logIn = () => run("login", async () => {
    const { url } = await post<{ url: string }>("servers/login", { name: server.name });
    window.open(url, "_blank", "noopener,noreferrer");
  });
  return (
    <section class="server" aria-label={`Server ${server.name}`}>
      <div class="row-line">
        <b>{server.name}</b>
        <Badge value={server.enabled ? server.state : "off"} />
        <span class="muted">{plural(server.tools, "tool")}{server.protocol ? ` · ${server.protocol}` : ""}</span>
        <span class="row-buttons">
          <button type="button" disabled={!!busy || !server.enabled} onClick={() => run("test", async () => setTest(await post<Test>("servers/test", { name: server.name })))}>{busy === "test" ? "Testing…" : "Test"}</button>
          {busy === "test" && <button type="button" onClick={() => void post("servers/cancel-test", { name: server.name }).catch(setError)}>Cancel</button>}
          {server.is_remote && <button type="button" disabled={!!busy} onClick={logIn}>Log in</button>}
          <button type="button" aria-expanded={!!log} onClick={() => log ? setLog(null) : run("log", async () => setLog((await get<{ lines: string[] }>("servers/log", { name: server.name })).lines))}>{log ? "Hide log" : "Log"}</button>
          {server.is_own && <button type="button" disabled={!!busy} onClick={() => change(server.enabled ? "disable" : "enable")}>{server.enabled ? "Disable" : "Enable"}</button>}
          {server.is_own && <button type="button" class="danger" disabled={!!busy} onClick={() => confirm(`Remove the server ${server.name} from your settings?`) && change("remove")}>Remove</button>}
        </span>
      </div>
      <p class="mono muted clip" title={server.target}>{server.target}</p>
      {server.held > 0 && <p class="warn-text">{plural(server.held, "tool")} held for review. <Link to="catalog">Review in the catalog</Link></p>}
      {server.error && <p class="problem spaced">{server.error}</p>}
      <Problem error={error} />
      {test && (test.ok
        ? <p class="good-text" role="status">It works: {plural(test.tools.length, "tool")}{test.tools.length ? ` (${test.tools.slice(0, 12).join(", ")}${test.tools.length > 12 ? ", …" : ""})` : ""}.{test.problems?.map((each) => ` ${each}`)}</p>
        : <p class="problem spaced" role="alert">{test.problem}</p>)}
      {log && <pre class="code wrap spaced" tabIndex={0} role="region" aria-label={`Log of ${server.name}`}>{log.length ? log.join("\n") : "No output yet."}</pre>}
    </section>
  );
}
