// ACLs and users.

import { get, part, post, remove } from "./api.js";
import { add, h, raw } from "./dom.js";
import { counted, number } from "./format.js";
import { needCluster, session } from "./session.js";
import { ask, badge, choice, field, notice, pager, table } from "./widgets.js";

const LIMIT = 100;
const words = (text) => text.split(" ").map((word) => [word, word.toLowerCase().replaceAll("_", " ")]);
const TYPES = words("TOPIC GROUP CLUSTER TRANSACTIONAL_ID DELEGATION_TOKEN USER");
const OPERATIONS = words(
  "READ WRITE CREATE DELETE ALTER DESCRIBE CLUSTER_ACTION DESCRIBE_CONFIGS ALTER_CONFIGS IDEMPOTENT_WRITE CREATE_TOKENS DESCRIBE_TOKENS ALL",
);

export async function draw(root, at) {
  const tab = at.query.get("tab") || "acls";
  add(root, [
    h("div", { class: "head" }, h("h1", null, "Access")),
    h(
      "nav",
      { class: "tabs", "aria-label": "Parts" },
      [["acls", "ACLs"], ["users", "Users"]].map(([key, title]) =>
        h("a", { href: "#/access?tab=" + key, "aria-current": key === tab ? "page" : null }, title),
      ),
    ),
  ]);
  try {
    await (tab === "users" ? users : acls)(root, at);
  } catch (error) {
    if (error.name === "AbortError" || !error.status || error.status === 503) throw error;
    add(root, [
      notice("warn", error.code === "SECURITY_DISABLED" ? "This broker has no authorizer: everybody may do everything. Set authorizer.class.name to have ACLs." : error.message),
      session.takes_passwords && error.code !== "SECURITY_DISABLED" ? h("a", { class: "button", href: "/login" }, "Log in") : null,
    ]);
  }
  return 0;
}

async function acls(root, at) {
  const search = at.query.get("search") || "";
  const skip = Number(at.query.get("skip") || 0);
  const found = await get("/acls", { search, skip, limit: LIMIT }, at.signal);
  const box = h("input", { type: "search", placeholder: "Search in all fields", "aria-label": "Search ACLs", value: search });
  box.addEventListener("change", () => at.setQuery({ search: box.value, skip: null }));
  add(root, [
    h("div", { class: "head" }, h("span", { class: "muted" }, counted(found.total, "ACL")), h("span", { class: "grow" }), box, needCluster(h("button", { type: "button", class: "primary change", onclick: () => create(at) }, "Create an ACL"), "ALTER")),
    h(
      "section",
      { class: "card" },
      table(
        [
          { title: "Principal", name: true, cell: (row) => raw(row.principal) },
          { title: "Permission", cell: (row) => badge(row.permission.toLowerCase(), row.permission === "ALLOW" ? "good" : "bad") },
          { title: "Operation", cell: (row) => row.operation.toLowerCase().replaceAll("_", " ") },
          { title: "Resource", name: true, cell: (row) => [row.resource_type.toLowerCase().replaceAll("_", " "), " ", raw(row.name), row.pattern === "PREFIXED" ? h("span", { class: "muted" }, " and what begins so") : null] },
          { title: "Host", cell: (row) => raw(row.host) },
          { title: "", cell: (row) => needCluster(h("button", { type: "button", class: "danger change", onclick: () => drop(at, row) }, "Delete"), "ALTER") },
        ],
        found.acls,
        "There are no ACLs.",
        "ACLs",
      ),
    ),
    pager(found.total, skip, LIMIT, (next) => at.setQuery({ skip: next || null })),
  ]);
}

function create(at) {
  const principal = h("input", { name: "principal", placeholder: "User:alice" });
  const permission = choice(words("ALLOW DENY"), "ALLOW");
  const operation = choice(OPERATIONS, "READ");
  const type = choice(TYPES, "TOPIC");
  const name = h("input", { name: "name", placeholder: "orders, or *" });
  const pattern = choice([["LITERAL", "this name"], ["PREFIXED", "all names that begin so"]], "LITERAL");
  const host = h("input", { name: "host", value: "*" });
  ask(
    "Create an ACL",
    [
      field("Principal", principal),
      field("Permission", permission),
      field("Operation", operation),
      field("Resource", type),
      field("Name", name, "Of the cluster: kafka-cluster"),
      field("Which", pattern),
      field("Host", host),
    ],
    "Create",
    async () => {
      await post("/acls", {
        principal: principal.value,
        permission: permission.value,
        operation: operation.value,
        resource_type: type.value,
        name: name.value,
        pattern: pattern.value,
        host: host.value,
      });
      at.again();
    },
  );
}

function drop(at, row) {
  ask(
    "Delete the ACL?",
    [h("p", null, raw(row.principal), ` ${row.permission.toLowerCase()} ${row.operation.toLowerCase()} on ${row.resource_type.toLowerCase()} `, raw(row.name))],
    "Delete",
    async () => {
      await post("/acls/delete", row);
      at.again();
    },
    { danger: true },
  );
}

async function users(root, at) {
  const found = await get("/users", {}, at.signal);
  add(root, [
    h("div", { class: "head" }, h("span", { class: "muted" }, `${number(found.users.length)} with SCRAM credentials`), h("span", { class: "grow" }), needCluster(h("button", { type: "button", class: "primary change", onclick: () => password(at, "") }, "Add a user"), "ALTER")),
    h(
      "section",
      { class: "card" },
      table(
        [
          { title: "User", name: true, cell: (row) => raw(row.user) },
          { title: "Mechanisms", cell: (row) => row.credentials.map((each) => `${each.mechanism} (${number(each.iterations)} iterations)`).join(", ") },
          {
            title: "",
            cell: (row) => [
              needCluster(h("button", { type: "button", class: "change", onclick: () => password(at, row.user) }, "New password"), "ALTER"),
              " ",
              needCluster(h("button", { type: "button", class: "danger change", onclick: () => dropUser(at, row.user) }, "Delete"), "ALTER"),
            ],
          },
        ],
        found.users,
        "There are no users with SCRAM credentials.",
        "Users",
      ),
    ),
  ]);
}

function password(at, user) {
  const name = h("input", { name: "user", value: user, readonly: Boolean(user), autocomplete: "off" });
  const secret = h("input", { name: "password", type: "password", autocomplete: "new-password" });
  ask(
    user ? "New password" : "Add a user",
    [field("User", name), field("Password", secret, "For SCRAM-SHA-256 and SCRAM-SHA-512")],
    "Save",
    async () => {
      await post("/users", { user: name.value, password: secret.value });
      at.again();
    },
  );
}

function dropUser(at, user) {
  ask(
    "Delete the credentials?",
    [h("p", null, "Nobody can log in any more as ", raw(user))],
    "Delete",
    async () => {
      await remove("/users?user=" + part(user));
      at.again();
    },
    { danger: true },
  );
}
