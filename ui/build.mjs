// Builds the dashboard's files into the Python package. With --check, only compares them with the sources.
import { build } from "esbuild";
import { readFile, writeFile, mkdir } from "node:fs/promises";
import { join } from "node:path";

const target = join(import.meta.dirname, "..", "src", "toolfold", "serving", "dashboard", "static");
const isCheck = process.argv.includes("--check");

async function bundle(entry, name) {
  const result = await build({
    entryPoints: [join(import.meta.dirname, "src", entry)],
    bundle: true,
    minify: true,
    write: false,
    format: entry === "theme.ts" ? "iife" : "esm",
    target: ["es2022"],
    jsx: "automatic",
    jsxImportSource: "preact",
    legalComments: "none",
    charset: "utf8",
  });
  return [name, Buffer.from(result.outputFiles[0].contents)];
}

async function copy(name) {
  return [name, await readFile(join(import.meta.dirname, "src", name))];
}

const files = await Promise.all([
  bundle("main.tsx", "app.js"),
  bundle("theme.ts", "theme.js"),
  bundle("styles.css", "app.css"),
  copy("index.html"),
  copy("icon.svg"),
]);

await mkdir(target, { recursive: true });
let outdated = [];
for (const [name, content] of files) {
  const file = join(target, name);
  const before = await readFile(file).catch(() => Buffer.alloc(0));
  if (before.equals(content)) continue;
  outdated.push(name);
  if (!isCheck) await writeFile(file, content);
}
if (isCheck && outdated.length) {
  console.error(`the built files of the dashboard do not match ui/src: ${outdated.join(", ")}; run: cd ui && npm run build`);
  process.exit(1);
}
console.log(isCheck ? "the built files of the dashboard match their sources" : `written: ${outdated.join(", ") || "nothing changed"}`);
