// Requests to the JSON interface. The page key is a second credential beside the cookie; only this tab has it.

const KEY = "toolfold-page-key";

export class ApiError extends Error {
  constructor(
    message: string,
    readonly status: number,
  ) {
    super(message);
  }
}

let onSignedOut: () => void = () => {};

export function whenSignedOut(listener: () => void): void {
  onSignedOut = listener;
}

const DEMO = "toolfold-demo";

/** Tell whether this tab shows the demo's tools and data instead of the user's own. */
export const isDemo = (): boolean => sessionStorage.getItem(DEMO) === "1";

export function showDemo(isShown: boolean): void {
  if (isShown) sessionStorage.setItem(DEMO, "1");
  else sessionStorage.removeItem(DEMO);
  location.reload();
}

function headers(): Record<string, string> {
  const key = { "x-toolfold-page-key": sessionStorage.getItem(KEY) ?? "" };
  return isDemo() ? { ...key, "x-toolfold-demo": "1" } : key;
}

async function read<T>(response: Response): Promise<T> {
  const body = await response.json().catch(() => ({}));
  if (response.ok) return body as T;
  if (response.status === 401) onSignedOut();
  throw new ApiError(body.error ?? `The server answered with status ${response.status}.`, response.status);
}

export async function get<T>(path: string, query: Record<string, string | number> = {}, signal?: AbortSignal): Promise<T> {
  const words = new URLSearchParams(Object.entries(query).map(([key, value]) => [key, String(value)]));
  const found = await fetch(`/ui/api/${path}${words.size ? `?${words}` : ""}`, { headers: headers(), signal });
  return read<T>(found);
}

export async function post<T = Record<string, never>>(path: string, body: object = {}, signal?: AbortSignal): Promise<T> {
  const sent = await fetch(`/ui/api/${path}`, {
    method: "POST",
    headers: { ...headers(), "content-type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  return read<T>(sent);
}

/** Request a change that the user has to confirm, and open the page on which that is done. */
export async function propose(path: string, body: object): Promise<void> {
  const { confirm } = await post<{ confirm?: string }>(path, body);
  if (confirm) location.assign(confirm);
}

export async function openStream(path: string, signal: AbortSignal): Promise<ReadableStream<Uint8Array>> {
  const response = await fetch(`/ui/api/${path}`, { headers: headers(), signal });
  if (!response.ok || !response.body) await read(response);
  return response.body!;
}

export async function signIn(code: string, token: string): Promise<void> {
  const { page_key } = await post<{ page_key: string }>("sign-in", { code, token });
  sessionStorage.setItem(KEY, page_key);
}

/** Open a session with the one-time code that follows a login at the identity provider. */
export async function finishLogin(code: string): Promise<void> {
  const { page_key } = await post<{ page_key: string }>("login", { code });
  sessionStorage.setItem(KEY, page_key);
}

export async function signOut(): Promise<void> {
  const left = await post<{ logout_url?: string }>("sign-out").catch((): { logout_url?: string } => ({}));
  sessionStorage.removeItem(KEY);
  if (left.logout_url) location.assign(left.logout_url);
}
