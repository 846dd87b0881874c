// Keys and values of records as text, JSON or hex.

export const VIEWS = [
  ["auto", "auto"],
  ["text", "text"],
  ["json", "JSON"],
  ["hex", "hex"],
];
// BOUND: bytes that are formatted: a line of a hex dump takes five times as many.
const HEX_BYTES_MAX = 256 * 1024;

export function bytesOf(data) {
  if (data.text !== undefined) return new TextEncoder().encode(data.text);
  const binary = atob(data.base64);
  const found = new Uint8Array(binary.length);
  for (let n = 0; n < binary.length; n += 1) found[n] = binary.charCodeAt(n);
  return found;
}

// What a schema registry makes of the data; null without one, or where bytes are wanted.
export function decodedText(data, as) {
  return data.decoded && data.decoded.text !== undefined && (as === "auto" || as === "json") ? data.decoded.text : null;
}

// data: as the API has it, not null. auto: JSON where it is some, text where it is UTF-8, else hex.
export function shownAs(data, as) {
  const decoded = decodedText(data, as);
  if (decoded !== null) return data.decoded.cut ? decoded : pretty(decoded);
  if (as === "hex") return hex(bytesOf(data));
  if (data.text === undefined) {
    return as === "text" ? new TextDecoder().decode(bytesOf(data)) : hex(bytesOf(data));
  }
  if (as === "text" || data.cut || !/^\s*[[{"]/.test(data.text)) {
    return as === "json" && !data.cut ? pretty(data.text) : data.text;
  }
  return pretty(data.text);
}

function pretty(text) {
  try {
    JSON.parse(text);
  } catch {
    return text;
  }
  return indented(text);
}

// Numbers stay as they were written: JSON.parse would round large ones.
function indented(text) {
  let out = "";
  let depth = 0;
  let inside = false;
  const line = () => "\n" + "  ".repeat(depth);
  for (let n = 0; n < text.length; n += 1) {
    const c = text[n];
    if (inside) {
      out += c;
      if (c === "\\") out += text[(n += 1)];
      else if (c === '"') inside = false;
    } else if (c === '"') {
      inside = true;
      out += c;
    } else if (c === "{" || c === "[") {
      const rest = text.slice(n + 1, n + 200).trimStart();
      if (rest[0] === "}" || rest[0] === "]") {
        out += c + rest[0];
        n = text.indexOf(rest[0], n + 1);
      } else {
        depth += 1;
        out += c + line();
      }
    } else if (c === "}" || c === "]") {
      depth -= 1;
      out += line() + c;
    } else if (c === ",") out += c + line();
    else if (c === ":") out += ": ";
    else if (!/\s/.test(c)) out += c;
  }
  return out;
}

function hex(found) {
  const lines = [];
  const last = Math.min(found.length, HEX_BYTES_MAX);
  for (let at = 0; at < last; at += 16) {
    const part = found.subarray(at, Math.min(at + 16, last));
    const digits = Array.from(part, (b) => b.toString(16).padStart(2, "0")).join(" ");
    const text = Array.from(part, (b) => (b >= 32 && b < 127 ? String.fromCharCode(b) : ".")).join("");
    lines.push(`${at.toString(16).padStart(8, "0")}  ${digits.padEnd(47)}  ${text}`);
  }
  if (found.length > last) lines.push(`… ${found.length - last} more bytes`);
  return lines.join("\n");
}
