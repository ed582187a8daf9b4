// Renders TeX with KaTeX: JSON [{tex, display}] in, JSON [{html, width} | {error}] out.
import katex from "katex";

const OPTIONS = { output: "htmlAndMathml", strict: "error", throwOnError: true };

/** Size of text by KaTeX's classes size1 to size11, in em. */
const SIZES = [0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.2, 1.44, 1.728, 2.074, 2.488];

const em = (length) => (length?.endsWith("em") ? parseFloat(length) : 0);

/** How much larger than its surroundings a span is. */
const scaleOf = (classes) => {
  const sizeOf = (prefix) =>
    SIZES[classes.find((c) => c.startsWith(prefix))?.slice(prefix.length) - 1];
  return sizeOf("size") / sizeOf("reset-size") || 1;
};

/** Width of a node of KaTeX's tree in em: no line break, no browser. */
const widthOf = (node) => {
  const { style = {}, classes = [], children = [] } = node;
  const letters = node.text ? [...node.text].length : 0; // letters of one font are one node
  const own = em(style.width) || em(style.minWidth) || letters * (node.width ?? 0);
  const widths = children.map(widthOf);
  // Rows of a column stand above one another; its second row is only depth.
  const inner = classes.includes("vlist")
    ? Math.max(0, ...widths)
    : classes.includes("vlist-t")
      ? (widths[0] ?? 0)
      : widths.reduce((sum, width) => sum + width, 0);
  const laps = ["llap", "rlap", "clap", "vlist-s", "pstrut"];
  if (classes.some((c) => laps.includes(c))) return 0;
  const margins =
    em(style.marginLeft) + em(style.marginRight) + em(style.paddingLeft);
  const italic = node.italic > 0 ? node.italic : 0;
  return Math.max(own + italic, inner) * scaleOf(classes) + margins;
};

const render = ({ tex, display }) => {
  const options = { ...OPTIONS, displayMode: display };
  try {
    const tree = katex.__renderToHTMLTree(tex, options);
    return { html: katex.renderToString(tex, options), width: widthOf(tree) };
  } catch (error) {
    return { error: error.message };
  }
};

let input = "";
for await (const chunk of process.stdin) input += chunk;
process.stdout.write(JSON.stringify(JSON.parse(input).map(render)));
