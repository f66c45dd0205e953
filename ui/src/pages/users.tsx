import { useState } from "preact/hooks";
import { post, propose } from "../api";
import { Badge, Card, Empty, Page, Problem, TryDemo, useData } from "../components";
import { dollars, plural, short, whole } from "../format";
import { Link } from "../router";

interface Rights {
  allowed: string[] | null;
  denied: string[];
}

interface Limit {
  meter: string;
  used: number;
  limit: number;
}

interface User {
  name: string;
  is_admin: boolean;
  is_disabled: boolean;
  has_login: boolean;
  teams: string[];
  tokens: string[];
  may_use: Rights;
  limits: Limit[];
  usage: { calls: number; tokens: number; cost: number } | null;
}

interface Team {
  name: string;
  members: string[];
  may_use: Rights;
  limits: Limit[];
}

interface Users {
  users: User[];
  teams: Team[];
  total: number;
}

export function UsersPage() {
  const { data, error, reload } = useData<Users>("users", {}, 5000);
  const [problem, setProblem] = useState<unknown>(null);
  const run = (work: Promise<unknown>) => work.then(() => { setProblem(null); reload(); }, setProblem);
  return (
    <Page title="Users" about="People who share the gateway. Tokens and logins belong to a user, and a team groups users.">
      <Problem error={problem ?? error} />
      {data && <UserTable data={data} run={run} />}
      {data && <TeamTable data={data} run={run} />}
      {data && <p class="muted">What users and teams may use is changed with <code>toolfold user allow</code>, <code>deny</code> and <code>limit</code>, and likewise for <code>team</code>. Tokens of users are created on the page <Link to="clients">Clients</Link>.</p>}
    </Page>
  );
}

type Run = (work: Promise<unknown>) => void;

function UserTable({ data, run }: { data: Users; run: Run }) {
  const [name, setName] = useState("");
  const [isAdmin, setAdmin] = useState(false);
  const add = (event: Event) => {
    event.preventDefault();
    run(propose("users/add", { name, is_admin: isAdmin }));
  };
  return (
    <Card title={data.total ? plural(data.total, "user") : undefined}>
      {data.users.length ? (
        <div class="scroll-x" tabIndex={0} role="region" aria-label="Users"><table class="table middle">
          <thead><tr><th>User</th><th>Teams</th><th>Access tokens</th><th>May use</th><th class="num">Calls</th><th class="num">Model tokens</th><th class="num">Cost</th><th><span class="visually-hidden">Changes</span></th></tr></thead>
          <tbody>{data.users.map((each) => <UserRow key={each.name} user={each} run={run} />)}</tbody>
        </table></div>
      ) : <Empty title="No users yet">One person needs none. If several people use the gateway, add a user for each, so that you see who does what, and can limit or disable one of them.<TryDemo /></Empty>}
      <form class="inline-form" onSubmit={add}>
        <input required maxLength={128} aria-label="Name of the new user" placeholder="ann" value={name} onInput={(event) => setName(event.currentTarget.value)} />
        <label class="check"><input type="checkbox" checked={isAdmin} onChange={() => setAdmin(!isAdmin)} />Administrator</label>
        <button type="submit" class="primary">Add a user</button>
        <span class="muted">Calls and cost: last 30 days.</span>
      </form>
    </Card>
  );
}

function UserRow({ user, run }: { user: User; run: Run }) {
  const change = (word: string) => run(propose("users/change", { name: user.name, change: word }));
  return (
    <tr>
      <td><b class="break">{user.name}</b> {user.is_admin && <Badge value="admin" tone="accent" />} {user.is_disabled && <Badge value="disabled" tone="bad" />}</td>
      <td class="break">{user.teams.join(", ") || "–"}</td>
      <td class="break">{[...user.tokens, ...(user.has_login ? ["login"] : [])].join(", ") || "none"}</td>
      <td class="break"><RightsText rights={user.may_use} /><Limits limits={user.limits} /></td>
      <td class="num">{user.usage?.calls ? short(user.usage.calls) : "–"}</td>
      <td class="num">{user.usage?.tokens ? short(user.usage.tokens) : "–"}</td>
      <td class="num">{user.usage?.cost ? dollars(user.usage.cost) : "–"}</td>
      <td><span class="row-buttons">
        <button type="button" onClick={() => change(user.is_disabled ? "enable" : "disable")}>{user.is_disabled ? "Enable" : "Disable"}</button>
        <button type="button" onClick={() => change(user.is_admin ? "no-admin" : "admin")}>{user.is_admin ? "No admin" : "Make admin"}</button>
        <button type="button" class="danger" onClick={() => confirm(`Remove the user ${user.name}, with its tokens, credentials, scheduled jobs and learned messages?`) && change("remove")}>Remove</button>
      </span></td>
    </tr>
  );
}

function TeamTable({ data, run }: { data: Users; run: Run }) {
  const [name, setName] = useState("");
  const add = (event: Event) => {
    event.preventDefault();
    run(post("teams/change", { team: name, change: "add" }).then(() => setName("")));
  };
  return (
    <Card title="Teams">
      {data.teams.length ? (
        <div class="scroll-x" tabIndex={0} role="region" aria-label="Teams"><table class="table middle">
          <thead><tr><th>Team</th><th>Members</th><th>Members may use</th><th><span class="visually-hidden">Changes</span></th></tr></thead>
          <tbody>{data.teams.map((each) => <TeamRow key={each.name} team={each} users={data.users} run={run} />)}</tbody>
        </table></div>
      ) : <Empty title="No teams yet">The rules and limits of a team apply to all its members.</Empty>}
      <form class="inline-form" onSubmit={add}>
        <input required maxLength={128} aria-label="Name of the new team" placeholder="support" value={name} onInput={(event) => setName(event.currentTarget.value)} />
        <button type="submit">Add a team</button>
      </form>
    </Card>
  );
}

function TeamRow({ team, users, run }: { team: Team; users: User[]; run: Run }) {
  const change = (word: string, user = "") => run(propose("teams/change", { team: team.name, change: word, user }));
  const others = users.filter((each) => !team.members.includes(each.name));
  return (
    <tr>
      <td><b class="break">{team.name}</b></td>
      <td><span class="chips">
        {team.members.map((each) => <button key={each} type="button" class="chip" aria-label={`Remove ${each} from ${team.name}`} onClick={() => change("leave", each)}>{each} ×</button>)}
        {others.length > 0 && (
          <select class="chip" aria-label={`Add to ${team.name}`} value="" onChange={(event) => event.currentTarget.value && change("join", event.currentTarget.value)}>
            <option value="">Add…</option>
            {others.map((each) => <option key={each.name} value={each.name}>{each.name}</option>)}
          </select>
        )}
      </span></td>
      <td class="break"><RightsText rights={team.may_use} /><Limits limits={team.limits} /></td>
      <td><span class="row-buttons"><button type="button" class="danger" onClick={() => change("remove")}>Remove</button></span></td>
    </tr>
  );
}

function RightsText({ rights }: { rights: Rights }) {
  const allowed = rights.allowed === null ? "everything" : rights.allowed.join(", ") || "nothing";
  return <>{allowed}{rights.denied.length > 0 && `, except ${rights.denied.join(", ")}`}</>;
}

function Limits({ limits }: { limits: Limit[] }) {
  return <>{limits.map((each) => <small key={each.meter} class="muted limit">{each.meter.replaceAll("_", " ")}: {whole(each.used)} of {whole(each.limit)}</small>)}</>;
}
