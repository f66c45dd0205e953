// Conversations with the Vercel AI SDK. Usage: vercel_client.mjs PLAN PACKAGES, where PLAN is a `FrameworkPlan`
// as JSON and PACKAGES the directory of the installed packages. Prints the results.
// The URL of the proxy comes from the environment, as a user of the SDK sets it.
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const [plan, packages] = [JSON.parse(process.argv[2]), process.argv[3]];
const require = createRequire(`${packages}/`);
const load = (name) => import(pathToFileURL(require.resolve(name)));
const { generateText, streamText, tool, jsonSchema, stepCountIs } = await load('ai');
const { openai } = await load('@ai-sdk/openai');
const { anthropic } = await load('@ai-sdk/anthropic');

const models = {
  chat: () => openai.chat('gpt-4.1'),
  responses: () => openai.responses('gpt-4.1'),
  messages: () => anthropic('claude-test-5'),
};

async function converse({ api, stream, question }) {
  const calls = [];
  const tools = Object.fromEntries(
    plan.tools.map(({ name, description, parameters }) => [
      name,
      tool({
        description,
        inputSchema: jsonSchema(parameters),
        execute: async (given) => {
          calls.push([name, given]);
          return plan.result;
        },
      }),
    ]),
  );
  const request = { model: models[api](), tools, prompt: question, stopWhen: stepCountIs(5), maxRetries: 0 };
  if (!stream) return { text: (await generateText(request)).text, calls };
  const problems = [];
  const result = streamText({ ...request, onError: ({ error }) => problems.push(error) });
  await result.consumeStream();
  if (problems.length) throw problems[0];
  return { text: await result.text, calls };
}

const results = {};
for (const each of plan.cases) results[each.name] = await converse(each);
console.log(JSON.stringify(results));
