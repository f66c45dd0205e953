// Runs oidc-provider, a certified OpenID Connect provider, for the tests of logins. Everything is in memory.
// Any password is accepted; the name that is entered in the login form becomes the subject, and the parts of the name
// behind a plus sign are its groups: `alice+admins` has the group `admins`.
// Clients may register themselves. Access tokens for a resource are JWTs with that resource as the audience.
// Prints the issuer as its first line. Ends when standard input is closed.
//   node provider.mjs PACKAGES [REDIRECT_URI]   PACKAGES is the directory that contains node_modules
import { createServer } from 'node:http';
import { generateKeyPairSync, randomBytes } from 'node:crypto';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const [packages, dashboardRedirect] = process.argv.slice(2);
const require = createRequire(`${packages}/package.json`);
const { Provider } = await import(pathToFileURL(require.resolve('oidc-provider')).href);

const SCOPES = ['openid', 'offline_access', 'profile', 'groups', 'toolfold'];
const SIGNING_ALGORITHM = 'RS256';

function makeKey(kid) {
  const { privateKey } = generateKeyPairSync('rsa', { modulusLength: 2048 });
  return { ...privateKey.export({ format: 'jwk' }), kid, use: 'sig', alg: SIGNING_ALGORITHM };
}

function findAccount(_context, id) {
  const [name, ...groups] = id.split('+');
  return { accountId: id, claims: async () => ({ sub: id, name, groups }) };
}

const server = createServer();
await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
const issuer = `http://127.0.0.1:${server.address().port}`;
const staticClients = dashboardRedirect
  ? [{ client_id: 'dashboard', client_secret: 'test-only-client-credential', redirect_uris: [dashboardRedirect],
       post_logout_redirect_uris: [new URL('.', dashboardRedirect).href] }]
  : [];

const provider = new Provider(issuer, {
  clients: staticClients,
  jwks: { keys: [makeKey('first')] },
  cookies: { keys: [randomBytes(32).toString('hex')] },
  scopes: SCOPES,
  claims: { openid: ['sub'], profile: ['name'], groups: ['groups'] },
  conformIdTokenClaims: false,
  findAccount,
  ttl: { AccessToken: 600, AuthorizationCode: 60, Grant: 3600, IdToken: 600, Interaction: 600, Session: 3600 },
  features: {
    registration: { enabled: true },
    revocation: { enabled: true },
    devInteractions: { enabled: true },
    resourceIndicators: {
      enabled: true,
      defaultResource: () => undefined,
      useGrantedResource: () => true,
      getResourceServerInfo: (_context, resource) => ({
        scope: SCOPES.join(' '), audience: resource, accessTokenFormat: 'jwt', jwt: { sign: { alg: SIGNING_ALGORITHM } },
      }),
    },
  },
});
server.on('request', provider.callback());
process.stdout.write(`${issuer}\n`);
process.stdin.resume();
process.stdin.on('end', () => process.exit(0));
