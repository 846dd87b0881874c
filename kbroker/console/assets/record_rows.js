// A record as a row of a table, and what opens below it.

import { get, part } from "./api.js";
import { add, fill, h, raw, visible } from "./dom.js";
import { bytes, number, time } from "./format.js";
import { decodedText, shownAs, VIEWS } from "./payload.js";
import { badge, choice, notice } from "./widgets.js";

const SHORT_CHARS_MAX = 160;
const MARKS = {
  aborted: ["bad", "its transaction was aborted: readers of what is committed never see it"],
  open: ["warn", "its transaction is open: readers of what is committed do not see it yet"],
  waiting: ["muted", "behind an open transaction: readers of what is committed do not see it yet"],
};

// onchosen: called when the row is chosen, or no longer.
export function recordRow(view, record, onchosen) {
  const place = `offset ${record.offset} of partition ${record.partition}`;
  const open = h("button", { type: "button", class: "quiet", tabindex: -1, "aria-expanded": "false", "aria-label": `Open ${place}` }, number(record.offset));
  const chosen = h("input", { type: "checkbox", tabindex: -1, "aria-label": `Choose ${place}` });
  const key = h("td", { class: "wide key", role: "cell" });
  const value = h("td", { class: "wide", role: "cell" });
  const row = h(
    "tr",
    { "data-record": `${record.partition}-${record.offset}`, class: record.transaction === "aborted" ? "aborted" : null, role: "row" },
    h("td", { class: "change", role: "cell" }, chosen),
    h("td", { class: "number partition", role: "cell" }, record.partition),
    h("td", { class: "number offset", role: "cell" }, open),
    h("td", { class: "number", role: "cell" }, time(record.timestamp)),
    key,
    value,
  );
  const show = () => {
    fill(key, short(record.key, view.as));
    fill(value, mark(record), short(record.value, view.as));
  };
  row.addEventListener("reshow", show);
  open.addEventListener("click", () => toggle(view, row, open, record));
  row.addEventListener("click", (event) => {
    // Marking text opens nothing.
    if (!event.target.closest("button, input, a, select") && getSelection().isCollapsed) open.click();
  });
  chosen.addEventListener("change", () => {
    if (chosen.checked) view.chosen.add(row);
    else view.chosen.delete(row);
    onchosen();
  });
  show();
  return row;
}

function mark(record) {
  const kind = MARKS[record.transaction];
  if (!kind) return null;
  const shown = badge(record.transaction, kind[0]);
  shown.title = kind[1];
  return [shown, " "];
}

function short(data, as) {
  if (data === null) return h("i", { class: "muted" }, "null");
  if (data.size === 0) return h("i", { class: "muted" }, "empty");
  const decoded = decodedText(data, as);
  // A line of JSON, as it was written, takes less room than what it opens to.
  const text = decoded ?? shownAs(data, as === "json" || (as === "auto" && data.text !== undefined) ? "text" : as);
  const cut = text.length > SHORT_CHARS_MAX || (decoded === null ? data.cut : data.decoded.cut);
  return [raw(text.slice(0, SHORT_CHARS_MAX), SHORT_CHARS_MAX), cut ? h("span", { class: "muted" }, ` … ${bytes(data.size)}`) : null];
}

function toggle(view, row, open, record) {
  const next = row.nextElementSibling;
  if (next && next.dataset.detail) {
    next.remove();
    row.classList.remove("open");
    open.setAttribute("aria-expanded", "false");
    return;
  }
  row.classList.add("open");
  open.setAttribute("aria-expanded", "true");
  const cell = h("div", { class: "detail" });
  row.after(h("tr", { class: "open", "data-detail": "1", role: "row" }, h("td", { colspan: 6, role: "cell" }, cell)));
  detail(view, cell, record);
}

function detail(view, cell, record) {
  const as = choice(VIEWS, view.as, { "aria-label": "Show as" });
  const body = h("div");
  let whole = record;
  const draw = () =>
    fill(
      body,
      record.transaction ? h("p", null, h("strong", null, "Transaction"), ` ${record.transaction}`, MARKS[record.transaction] ? `: ${MARKS[record.transaction][1]}` : null) : null,
      payload("Key", whole.key, as.value),
      payload("Value", whole.value, as.value),
      whole.headers.length ? [h("h2", null, "Headers"), h("dl", { class: "pairs" }, whole.headers.map((each) => header(each, as.value)))] : h("p", { class: "muted" }, "No headers."),
    );
  as.addEventListener("change", draw);
  const isCut = (data) => data && (data.cut || (data.decoded && data.decoded.cut));
  const cut = [record.key, record.value, ...record.headers.map((each) => each.value)].some(isCut);
  const load = h("button", { type: "button" }, "Load the whole record");
  load.addEventListener("click", async () => {
    load.disabled = true;
    try {
      whole = await get(`/topics/${part(view.topic.name)}/message`, { partition: record.partition, offset: record.offset }, view.at.signal);
      load.remove();
      draw();
    } catch (error) {
      if (error.name === "AbortError") return;
      load.disabled = false;
      add(body, [notice("bad", error.message)]);
    }
  });
  add(cell, [h("div", { class: "bar" }, h("label", null, "Show as ", as), cut ? load : null), body]);
  draw();
}

function header(each, as) {
  const value = each.value === null ? h("i", { class: "muted" }, "null") : raw(shownAs(each.value, as === "hex" ? "hex" : "text"), 2000);
  return [h("dt", null, raw(shownAs(each.name, "text"))), h("dd", null, value)];
}

function payload(title, data, as) {
  if (data === null) return h("p", null, h("strong", null, title), " ", h("i", { class: "muted" }, "null"));
  const size = data.cut ? `${bytes(data.size)}, the beginning` : bytes(data.size);
  return [
    h("p", null, h("strong", null, title), " ", h("span", { class: "muted" }, size, schema(data.decoded))),
    h("pre", { tabindex: 0, role: "region", "aria-label": title }, visible(shownAs(data, as))),
  ];
}

function schema(decoded) {
  if (!decoded) return null;
  if (decoded.error !== undefined) return [`, names schema ${decoded.schema}, not decoded: `, raw(decoded.error)];
  return `, ${decoded.format} by schema ${decoded.schema}`;
}
