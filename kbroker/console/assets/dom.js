// Nodes from data. Text always becomes text nodes: nothing in here, or in a page, parses markup.

const SVG = "http://www.w3.org/2000/svg";

export function h(tag, props, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "class") node.className = value;
    else if (name === "value" || name === "checked") node[name] = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  add(node, children);
  return node;
}

export function add(node, children) {
  for (const child of [children].flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

export function fill(node, ...children) {
  node.replaceChildren();
  return add(node, children);
}

// Characters that move, hide or reverse what is around them are shown by their number.
const HIDDEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

export function visible(text) {
  return String(text).replace(HIDDEN, (c) => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));
}

// A name or text that a client chose.
export function raw(text, limit = 400) {
  const whole = String(text);
  const shown = whole.length > limit ? whole.slice(0, limit) + "…" : whole;
  return h("bdi", { class: "raw", title: whole.length > limit ? "shortened" : null }, visible(shown));
}

// A line for each run of places, "x,y"; null is a gap.
function drawLines(svg, width, places) {
  let run = [];
  const end = () => {
    if (run.length) {
      const line = document.createElementNS(SVG, "polyline");
      line.setAttribute("points", (run.length > 1 ? run : [run[0], run[0]]).join(" "));
      line.setAttribute("fill", "none");
      line.setAttribute("stroke", "currentColor");
      line.setAttribute("stroke-width", width);
      line.setAttribute("stroke-linecap", "round");
      line.setAttribute("vector-effect", "non-scaling-stroke");
      svg.append(line);
    }
    run = [];
  };
  for (const place of places) {
    if (place === null) end();
    else run.push(place);
  }
  end();
}

// A curve. points: [milliseconds, value], in order; a value of null is a gap. told: of a value.
export function chart(points, label, told, clock) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 600 96");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", label);
  const most = points.reduce((largest, [, value]) => Math.max(largest, value || 0), 1);
  const first = points[0][0];
  const last = points[points.length - 1][0];
  const span = Math.max(last - first, 1);
  drawLines(svg, "2", points.map(([at, value]) =>
    value === null ? null : `${((at - first) / span) * 600},${92 - (value / most) * 86}`));
  return h("figure", { class: "chart" }, h("span", null, told(most)), svg, h("span", null, clock(first)), h("span", null, clock(last)));
}

// A small curve without axes; 0 is the lower edge.
export function spark(points, label) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 120 28");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("class", "spark");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", label);
  const most = points.reduce((largest, value) => Math.max(largest, value || 0), 0) || 1;
  const step = 120 / Math.max(points.length - 1, 1);
  drawLines(svg, "1.5", points.map((value, n) =>
    value === null ? null : `${n * step},${26 - (value / most) * 24}`));
  return svg;
}
