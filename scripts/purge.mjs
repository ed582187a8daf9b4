// Drops rules that no page can match: JSON {css, words} in, the lighter sheet out.
import { PurgeCSS } from "purgecss";

let input = "";
for await (const chunk of process.stdin) input += chunk;
const { css, words } = JSON.parse(input);

const [{ css: lighter }] = await new PurgeCSS().purge({
  content: [{ raw: words, extension: "txt" }],
  css: [{ raw: css }],
  defaultExtractor: (text) => text.split("\n"),
});
process.stdout.write(lighter);
