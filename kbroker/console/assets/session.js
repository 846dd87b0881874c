// Who uses these pages, and what the user may do.

import { get, part } from "./api.js";
import { fill, h, raw } from "./dom.js";

export const session = { user: null, logged_in: false, takes_passwords: false, rights: null };

export async function introduce(node) {
  try {
    Object.assign(session, await get("/session"));
  } catch {
    return; // the page itself says what is wrong
  }
  const enter = session.logged_in
    ? h("a", { href: "/logout?user=" + part(session.user), id: "logout" }, "Log out")
    : session.takes_passwords
      ? h("a", { href: "/login", id: "login" }, "Log in")
      : null;
  fill(node, h("span", { class: "muted", title: "User:" + session.user }, raw(session.user, 24)), enter);
}

// A button that the user lacks the right for says so, instead of doing anything. rights: null if
// nobody knows; then the broker says it.
export function need(button, rights, right, what) {
  if (!rights || rights.includes(right)) return button;
  const text = `User:${session.user} lacks the right ${right} on ${what}`;
  button.setAttribute("aria-disabled", "true");
  button.title = text;
  button.addEventListener(
    "click",
    (event) => {
      event.stopImmediatePropagation();
      const alert = document.getElementById("alert");
      fill(alert, text + ".");
      alert.hidden = false;
    },
    true,
  );
  return button;
}

export const needCluster = (button, right) => need(button, session.rights, right, "the cluster");

// What a list without rows says. sees_all: of the API.
export function emptiness(found, empty, right) {
  if (found.sees_all === false) return `There are none that User:${session.user} may see: that takes the right ${right}.`;
  return empty;
}
