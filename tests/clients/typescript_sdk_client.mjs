// A client with the TypeScript SDK.
// Usage: typescript_sdk_client.mjs PLAN PACKAGE, where PLAN is a `LibraryPlan` as JSON, PACKAGE the SDK's directory.
const [plan, folder] = [JSON.parse(process.argv[2]), process.argv[3]];
const { Client } = await import(`${folder}/dist/index.mjs`);
const { StdioClientTransport } = await import(`${folder}/dist/stdio.mjs`);

const answers = [...plan.answers];
const questions = [];
const client = new Client(
  { name: "typescript-sdk", version: "1" },
  { capabilities: { elicitation: { form: {} } }, versionNegotiation: { mode: "auto" } },
);
client.setRequestHandler("elicitation/create", async (request) => {
  questions.push(request.params.message);
  const action = answers.shift();
  return action === "accept" ? { action, content: {} } : { action };
});

const [command, ...args] = plan.command;
await client.connect(new StdioClientTransport({ command, args, env: plan.environment }), { timeout: 300_000 });
const listed = (await client.listTools()).tools.map((tool) => tool.name);
const results = [];
for (const step of plan.steps) {
  const result = await client.callTool({ name: step.tool, arguments: step.arguments }, { timeout: 300_000 });
  results.push(result.content[0].text);
}
await client.close();
console.log(JSON.stringify({ listed, results, questions }));
