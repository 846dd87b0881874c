// Figures and times as people read them. What is not known is a dash, never a zero.

const WHOLE = new Intl.NumberFormat("en");
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

const unknown = (value) => value === null || value === undefined;

export const number = (value) => (unknown(value) ? "–" : WHOLE.format(value));

export function bytes(value) {
  if (unknown(value)) return "–";
  let left = value;
  let unit = 0;
  // What would be shown as 1024 of a unit is 1.0 of the next.
  while (left >= 1023.5 && unit < UNITS.length - 1) {
    left /= 1024;
    unit += 1;
  }
  return `${unit === 0 || left >= 100 ? Math.round(left) : left.toFixed(1)} ${UNITS[unit]}`;
}

export function duration(seconds) {
  if (unknown(seconds)) return "–";
  if (seconds < 1) return seconds === 0 ? "0 s" : "< 1 s";
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

export function time(ms) {
  if (unknown(ms) || ms < 0) return "–";
  const date = new Date(ms);
  if (Number.isNaN(date.getTime())) return String(ms);
  const two = (n, width = 2) => String(n).padStart(width, "0");
  return (
    `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ` +
    `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}` +
    `.${two(date.getMilliseconds(), 3)}`
  );
}

export const counted = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;

// 1,234 and 12.3: of rates, where a small one is not 0.
export function rate(value) {
  if (unknown(value)) return "–";
  return value > 0 && value < 99.95 ? value.toFixed(value < 0.1 ? 2 : 1) : number(Math.round(value));
}
