// What several pages are made of.

import { fill, h } from "./dom.js";
import { number } from "./format.js";

// columns: {title, cell(row), number, wide, name}. empty: what is said without rows.
export function table(columns, rows, empty, label) {
  if (rows.length === 0) return h("p", { class: "empty" }, empty);
  const kind = (c) => (c.number ? "number" : c.wide ? "wide" : c.name ? "name" : null);
  return h(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": label || "table" },
    h(
      "table",
      null,
      h("thead", null, h("tr", null, columns.map((c) => h("th", { class: c.number ? "number" : null, scope: "col" }, c.title)))),
      h("tbody", null, rows.map((row) => h("tr", null, columns.map((c) => h("td", { class: kind(c) }, c.cell(row)))))),
    ),
  );
}

export function tile(label, figure, state = "") {
  return h("div", { class: "tile " + state }, h("div", { class: "figure" }, figure), h("div", { class: "label" }, label));
}

export function card(title, ...children) {
  return h("section", { class: "card" }, title ? h("h2", null, title) : null, children);
}

export function notice(kind, ...children) {
  return h("div", { class: "notice " + kind, role: kind === "bad" ? "alert" : null }, children);
}

export function badge(text, kind) {
  return h("span", { class: "badge " + kind }, text);
}

export function pager(total, skip, limit, go) {
  if (total <= limit && skip === 0) return null;
  const last = Math.min(skip + limit, total);
  return h(
    "div",
    { class: "bar" },
    h("button", { type: "button", disabled: skip === 0, onclick: () => go(Math.max(skip - limit, 0)) }, "Previous"),
    h("span", null, total === 0 ? "none" : `${number(skip + 1)} to ${number(last)} of ${number(total)}`),
    h("button", { type: "button", disabled: last >= total, onclick: () => go(skip + limit) }, "Next"),
  );
}

export function copyable(text) {
  const button = h("button", { type: "button" }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      const range = document.createRange();
      range.selectNodeContents(button.nextSibling);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      button.textContent = "Press Ctrl-C";
    }
  });
  return h("div", { class: "copy" }, button, h("pre", null, text));
}

// A dialog with a form. fields: nodes; act: async, returns what is shown, or nothing to close.
export function ask(title, fields, verb, act, { danger = false, extra = [] } = {}) {
  const said = h("div", { role: "status" });
  const submit = h("button", { type: "submit", class: danger ? "danger" : "primary" }, verb);
  const form = h(
    "form",
    { method: "dialog" },
    h("h2", null, title),
    h("div", { class: "fields" }, fields),
    said,
    h("div", { class: "buttons" }, extra, h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"), submit),
  );
  const dialog = h("dialog", null, form);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    submit.disabled = true;
    fill(said);
    try {
      const told = await act();
      if (told) fill(said, told);
      else dialog.close();
    } catch (error) {
      fill(said, notice("bad", error.message));
    }
    submit.disabled = false;
  });
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  return { dialog, said };
}

export function field(label, input, help) {
  return h("label", null, h("span", null, label), input, help ? h("span", { class: "help" }, help) : null);
}

export function check(label, input) {
  return h("label", { class: "check" }, input, h("span", null, label));
}

export function choice(options, value, props) {
  return h("select", props, options.map(([name, text]) => h("option", { value: name, selected: name === value }, text)));
}
