import { useState } from "preact/hooks";
import { get, post, propose } from "../api";
import { Badge, Card, Empty, Page, Problem, useData } from "../components";
import { plural, whole } from "../format";

interface Client {
  name: string;
  toolsets: string[] | null;
  created: number;
  tools: number | null;
  user: string;
}

interface Clients {
  clients: Client[];
  total: number;
  connected: { name: string; token: string; user: string; process: number | null; tools: number; busy: boolean; gateway: string }[];
  toolsets: string[];
  users: string[];
}

export function ClientsPage() {
  const { data, error, reload } = useData<Clients>("clients", {}, 5000);
  return (
    <Page title="Clients" about="Programs that use your tools through the gateway. A token decides which toolsets a client may use.">
      <Problem error={error} />
      <Card title={data?.connected.length ? `${plural(data.connected.length, "client")} connected now` : "Connected now"}>
        {data?.connected.length ? (
          <div class="scroll-x"><table class="table">
            <thead><tr><th>Client</th><th>Token</th><th>User</th><th>Gateway</th><th class="num">Process</th><th class="num">Tools</th><th>State</th></tr></thead>
            <tbody>{data.connected.map((each, index) => <tr key={index}><td>{each.name}</td><td>{each.token || "none"}</td><td>{each.user || "–"}</td><td class="mono">{each.gateway}</td><td class="num">{each.process ?? "–"}</td><td class="num">{whole(each.tools)}</td><td><Badge value={each.busy ? "busy" : "idle"} tone={each.busy ? "warn" : "plain"} /></td></tr>)}</tbody>
          </table></div>
        ) : <Empty title="No client is connected">Set one up with <code>toolfold connect</code>; it appears here while it runs.</Empty>}
      </Card>
      <Card title={data?.total ? plural(data.total, "token") : "Tokens"}>
        {data?.clients.length ? <ul class="rows">{data.clients.map((each) => <ClientRow key={each.name} client={each} onChange={reload} />)}</ul> : <Empty title="No tokens">Programs on this machine can connect without one. Other machines need a token: create one below.</Empty>}
      </Card>
      {data && <AddClient toolsets={data.toolsets} users={data.users} />}
    </Page>
  );
}

function AddClient({ toolsets, users }: { toolsets: string[]; users: string[] }) {
  const [user, setUser] = useState("");
  const [name, setName] = useState("");
  const [chosen, setChosen] = useState<string[]>([]);
  const [error, setError] = useState<unknown>(null);
  const add = async (event: Event) => {
    event.preventDefault();
    try {
      await propose("clients/add", { name, user, toolsets: chosen.length ? chosen : null });
    } catch (problem) {
      setError(problem);
    }
  };
  return (
    <Card title="Create a token">
      <form class="form thirds" onSubmit={add}>
        <label class="field"><span>Name of the client</span><input required maxLength={64} placeholder="laptop" value={name} onInput={(event) => setName(event.currentTarget.value)} /></label>
        <label class="field"><span>Toolset</span>
          <select value="" onChange={(event) => { const value = event.currentTarget.value; if (value && !chosen.includes(value)) setChosen([...chosen, value]); event.currentTarget.value = ""; }}>
            <option value="">{chosen.length ? "Add another toolset" : "All that the gateway offers"}</option>
            {toolsets.map((each) => <option key={each} value={each}>{each}</option>)}
          </select>
        </label>
        <label class="field"><span>User</span>
          <select value={user} onChange={(event) => setUser(event.currentTarget.value)}>
            <option value="">None</option>
            {users.map((each) => <option key={each} value={each}>{each}</option>)}
          </select>
        </label>
        {chosen.length > 0 && <div class="whole chips">{chosen.map((each) => <button key={each} type="button" class="chip" aria-label={`Remove ${each}`} onClick={() => setChosen(chosen.filter((one) => one !== each))}>{each} ×</button>)}</div>}
        <div class="whole"><Problem error={error} /></div>
        <div class="buttons whole"><button type="submit" class="primary">Create</button></div>
      </form>
    </Card>
  );
}

function ClientRow({ client, onChange }: { client: Client; onChange: () => void }) {
  const [tools, setTools] = useState<{ granted: string[]; shown: string[] } | null>(null);
  const [error, setError] = useState<unknown>(null);
  const revoke = () => confirm(`Revoke the token of ${client.name}? It cannot connect any more.`) && post("clients/revoke", { name: client.name }).then(onChange, setError);
  return (
    <li>
      <div class="row-line">
        <b>{client.name}</b>
        {client.user && <span>{client.user}</span>}
        <span class="muted">{client.toolsets ? client.toolsets.join(", ") : "all toolsets of the gateway"}</span>
        <span class="muted">{client.tools === null ? "a toolset is missing" : plural(client.tools, "tool")}</span>
        <span class="row-buttons">
          <button type="button" aria-expanded={!!tools} onClick={() => tools ? setTools(null) : get<{ granted: string[]; shown: string[] }>("clients/tools", { name: client.name }).then(setTools, setError)}>What it sees</button>
          <button type="button" class="danger" onClick={revoke}>Revoke</button>
        </span>
      </div>
      <Problem error={error} />
      {tools && <p class="muted spaced break">Listed: {tools.shown.join(", ") || "nothing"}. May use {plural(tools.granted.length, "tool")}: {tools.granted.slice(0, 60).join(", ")}{tools.granted.length > 60 ? ", …" : ""}.</p>}
    </li>
  );
}
