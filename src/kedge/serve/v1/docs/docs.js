// Shows /v1/openapi.json: a section for each route, with its fields and answers. Text goes in as text, never as HTML.

const element = (tag, text = "", ...children) => {
  const made = document.createElement(tag);
  made.textContent = text;
  made.append(...children);
  return made;
};

/** A sentence in which `code` is marked. */
const prose = (tag, text) =>
  element(tag, "", ...text.split("`").map((part, i) => (i % 2 ? element("code", part) : part)));

const table = (heads, rows) => {
  const head = element("tr", "", ...heads.map((name) => element("th", name)));
  const body = rows.map((cells) =>
    element("tr", "", ...cells.map((cell, i) => prose("td", i ? cell : `\`${cell}\``))));
  return element("table", "", element("thead", "", head), element("tbody", "", ...body));
};

const named = (description, ref) => ref.split("/").slice(1).reduce((place, step) => place[step], description);

/** What a value may be, in a few words. */
const kind = (schema) => {
  if (schema.$ref) return schema.$ref.split("/").pop();
  const parts = schema.anyOf ?? schema.oneOf;
  if (parts) return [...new Set(parts.map(kind))].join(" or ");
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" or ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.type === "array") return `list of ${kind(schema.items ?? {})}`;
  return schema.type ?? "any";
};

const fields = (description, schema) => {
  const found = schema.$ref ? named(description, schema.$ref) : schema;
  const required = found.required ?? [];
  const rows = Object.entries(found.properties ?? {}).map(([name, field]) => {
    const fallback = field.default === undefined || field.default === null ? "" : ` Default: ${field.default}.`;
    return [name, kind(field) + (required.includes(name) ? ", required" : ""), (field.description ?? "") + fallback];
  });
  return rows.length ? table(["field", "type", "meaning"], rows) : element("p", kind(found));
};

const content = (part) => Object.values(part?.content ?? {})[0]?.schema;

const route = (description, path, method, found) => {
  const section = element("section");
  if (found.parameters?.length) {
    const rows = found.parameters.map((part) => [part.name, kind(part.schema), part.description ?? ""]);
    section.append(element("h3", "In the address"), table(["name", "type", "meaning"], rows));
  }
  const sent = content(found.requestBody);
  if (sent) section.append(element("h3", "Request"), fields(description, sent));
  for (const [status, answer] of Object.entries(found.responses).filter(([status]) => status < "300")) {
    section.append(element("h3", `Answer ${status}`));
    if (content(answer)) section.append(fields(description, content(answer)));
  }
  const errors = Object.entries(found.responses).filter(([status]) => status >= "300");
  section.append(element("h3", "Errors"), table(["status", "meaning"], errors.map(([s, e]) => [s, e.description])));
  const verb = element("span", method.toUpperCase());
  verb.className = "method";
  const line = element("summary", "", verb, element("code", path), prose("p", found.description ?? ""));
  return element("details", "", line, section);
};

const shared = ["Packed", "PackedAnswer", "FoundClass", "Verdict"]; // parts that several routes use

const show = async () => {
  const answer = await fetch("/v1/openapi.json");
  if (!answer.ok) throw new Error((await answer.json()).error);
  const description = await answer.json();
  document.getElementById("version").textContent = description.info.version;
  document.getElementById("about").replaceWith(prose("p", description.info.description));
  const routes = document.getElementById("routes");
  for (const [path, methods] of Object.entries(description.paths))
    for (const [method, found] of Object.entries(methods)) routes.append(route(description, path, method, found));
  routes.append(element("h2", "Parts"));
  for (const name of shared.filter((part) => description.components.schemas[part])) {
    const schema = description.components.schemas[name];
    routes.append(element("h3", name), prose("p", schema.description ?? ""), fields(description, schema));
  }
};

show().catch((error) => { document.getElementById("about").textContent = `This did not work: ${error.message}`; });
