// An MCP client of the TypeScript SDK that logs in with OAuth and calls a tool.
// Prints the authorization URL as its first line, reads the redirect URL from standard input, and prints the result.
//   node oauth_client.mjs PACKAGES SERVER_URL REDIRECT_URI TOOL ARGUMENTS
import { createInterface } from 'node:readline';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const [packages, serverUrl, redirectUri, tool, args] = process.argv.slice(2);
const require = createRequire(`${packages}/package.json`);
const load = (name) => import(pathToFileURL(require.resolve(`@modelcontextprotocol/sdk/client/${name}.js`)).href);
const { Client } = await load('index');
const { StreamableHTTPClientTransport } = await load('streamableHttp');
const { UnauthorizedError } = await load('auth');

const saved = {};
const authProvider = {
  redirectUrl: redirectUri,
  clientMetadata: {
    client_name: 'test', redirect_uris: [redirectUri], token_endpoint_auth_method: 'none',
    grant_types: ['authorization_code'], response_types: ['code'],
  },
  clientInformation: () => saved.client,
  saveClientInformation: (client) => { saved.client = client; },
  tokens: () => saved.tokens,
  saveTokens: (tokens) => { saved.tokens = tokens; },
  redirectToAuthorization: (url) => { process.stdout.write(`${url.href}\n`); },
  saveCodeVerifier: (verifier) => { saved.verifier = verifier; },
  codeVerifier: () => saved.verifier,
};

const makeTransport = () => new StreamableHTTPClientTransport(new URL(serverUrl), { authProvider });
const first = makeTransport();
try {
  await new Client({ name: 'test', version: '1' }).connect(first);
  throw new Error('the server did not ask for a login');
} catch (error) {
  if (!(error instanceof UnauthorizedError)) throw error;
}
const [redirect] = await new Promise((resolve) => {
  createInterface({ input: process.stdin }).once('line', (line) => resolve([line]));
});
await first.finishAuth(new URL(redirect).searchParams.get('code'));
const client = new Client({ name: 'test', version: '1' });
await client.connect(makeTransport());
const result = await client.callTool({ name: tool, arguments: JSON.parse(args) });
process.stdout.write(`${JSON.stringify(result.content)}\n`);
await client.close();
process.exit(0);
