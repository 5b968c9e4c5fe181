"use strict";

const find = (id) => document.getElementById(id);
let page = null;
let chosen = null;

function make(tag, parent, text = "") {
  const made = parent.appendChild(document.createElement(tag));
  made.textContent = text;
  return made;
}

function resolve(schema) {
  return schema.$ref ? page.components.schemas[schema.$ref.split("/").pop()] : schema;
}

// A value of a schema, for the first text of a body.
function sample(given, depth = 0) {
  const schema = resolve(given);
  if (schema.examples) return schema.examples[0];
  if (schema.anyOf) return sample(schema.anyOf[0], depth);
  if (schema.enum) return schema.enum[0];
  const type = [].concat(schema.type)[0];
  if (type === "array") return depth > 3 ? [] : [sample(schema.items ?? {}, depth + 1)];
  if (type === "object") {
    const fields = Object.entries(schema.properties ?? {});
    return Object.fromEntries(fields.map(([name, field]) => [name, sample(field, depth + 1)]));
  }
  return { number: 0, integer: 0, boolean: false }[type] ?? "";
}

function address() {
  let path = chosen.path;
  const query = new URLSearchParams();
  for (const input of find("parameters").querySelectorAll("input")) {
    if (input.dataset.place === "path") path = path.replace(`{${input.name}}`, encodeURIComponent(input.value));
    else if (input.value) query.append(input.name, input.value);
  }
  return path + (query.size ? `?${query}` : "");
}

function request() {
  const headers = {};
  if (find("token").value) headers.Authorization = `Bearer ${find("token").value}`;
  const body = chosen.operation.requestBody ? find("body").value : undefined;
  if (body !== undefined) headers["Content-Type"] = Object.keys(chosen.operation.requestBody.content)[0];
  return { method: chosen.verb.toUpperCase(), headers, body };
}

function quote(text) {
  return `'${text.replaceAll("'", `'\\''`)}'`;
}

function showCommand() {
  const { method, headers, body } = request();
  const parts = [`curl -X ${method} ${quote(location.origin + address())}`];
  for (const [name, value] of Object.entries(headers)) {
    parts.push(`-H ${quote(`${name}: ${name === "Authorization" ? "Bearer $TOKEN" : value}`)}`.replace("'Authorization: Bearer $TOKEN'", '"Authorization: Bearer $TOKEN"'));
  }
  if (body !== undefined) parts.push(`-d ${quote(body)}`);
  find("curl").textContent = parts.join(" \\\n  ");
}

function choose(next, button) {
  chosen = next;
  for (const each of document.querySelectorAll("nav button")) each.setAttribute("aria-current", each === button);
  find("title").textContent = `${next.verb.toUpperCase()} ${next.path}`;
  find("about").textContent = `${next.operation.summary}. ${next.operation.description ?? "Needs no token."}`;
  find("parameters").replaceChildren();
  for (const parameter of next.operation.parameters) {
    const input = make("input", make("label", find("parameters"), parameter.name));
    input.name = parameter.name;
    input.dataset.place = parameter.in;
    input.required = parameter.in === "path";
  }
  const content = Object.values(next.operation.requestBody?.content ?? {})[0];
  find("body-label").hidden = !content;
  if (content) {
    const value = sample(content.schema);
    for (const parameter of next.operation.parameters) delete value[parameter.name];
    find("body").value = JSON.stringify(value, null, 2);
  }
  find("response").textContent = "";
  showCommand();
}

async function send(event) {
  event.preventDefault();
  find("response").textContent = "…";
  try {
    const response = await fetch(address(), request());
    const text = await response.text();
    let shown = text;
    try { shown = JSON.stringify(JSON.parse(text), null, 2); } catch { /* not JSON: as it is */ }
    find("response").textContent = `${response.status} ${response.statusText}\n${shown}`;
  } catch (error) {
    find("response").textContent = String(error);
  }
}

async function start() {
  page = await (await fetch("/openapi.json")).json();
  let group = "";
  let first = null;
  for (const [path, operations] of Object.entries(page.paths)) {
    for (const [verb, operation] of Object.entries(operations)) {
      if (operation.tags[0] !== group) {
        group = operation.tags[0];
        make("h3", find("operations"), group);
      }
      const button = make("button", find("operations"), `${verb.toUpperCase()} ${path}`);
      button.onclick = () => choose({ path, verb, operation }, button);
      first ??= button;
    }
  }
  first.click();
  find("form").onsubmit = send;
  document.body.oninput = showCommand;
}

start();
