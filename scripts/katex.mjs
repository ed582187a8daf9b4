// Renders TeX with KaTeX: JSON [{tex, display}] in, JSON [{html} | {error}] out.
import katex from "katex";

let input = "";
for await (const chunk of process.stdin) input += chunk;

const render = ({ tex, display }) => {
  try {
    return {
      html: katex.renderToString(tex, {
        displayMode: display,
        output: "htmlAndMathml",
        strict: "error",
        throwOnError: true,
      }),
    };
  } catch (error) {
    return { error: error.message };
  }
};

process.stdout.write(JSON.stringify(JSON.parse(input).map(render)));
