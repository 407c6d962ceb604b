// Projects and what goes in and out: new projects, guidelines, items, exports, and deleting a dialogue.

import { make } from "../parts.js";
import { markdown } from "./markdown.js";
import { call } from "./server.js";
import { field, formCard, select } from "./table.js";
import { number, say } from "./words.js";

export async function dataView(page) {
  const project = page.project();
  if (!project) return make("div", { class: "cards" }, newProject(page));
  const { text } = await call("GET", `/api/projects/${project.id}/guidelines`);
  return make("div", { class: "cards" }, importCard(page, project), exportCard(project), guidelinesCard(page, project, text), settingsCard(page, project), newProject(page), deleteCard(page));
}

function newProject(page) {
  const name = make("input", { required: true, maxlength: "100", autocomplete: "off", id: "project-name" });
  const task = select(["steps", "compare", "rating"], (value) => say(`task_names.${value}`), "steps");
  const act = async () => {
    const made = await page.attempt(() => call("POST", "/api/projects", { name: name.value, task: task.value, guidelines: "" }));
    if (!made) return;
    await page.reread(made.id);
    page.tell(say("done"));
    page.go("data");
  };
  return formCard(say("new_project"), say("make_project"), act, make("div", { class: "pair" }, field(say("project_name"), name), field(say("task"), task)));
}

function importCard(page, project) {
  const file = make("input", { type: "file", required: true, accept: ".jsonl,.json,.ndjson", id: "import-file" });
  const kind = select(["real", "training", "gold"], (value) => say(`kinds.${value}`), "real");
  const priority = make("input", { type: "number", value: "0", required: true });
  const result = make("p", { class: "result", role: "status", id: "import-result" });
  const act = async () => {
    const asked = `kind=${kind.value}&priority=${Number(priority.value)}`;
    const reply = await page.attempt(() => call("POST", `/api/projects/${project.id}/items?${asked}`, file.files[0]));
    const { counts } = reply ?? {};
    result.textContent = counts ? say("imported", { added: number(counts.added ?? 0), there: number(counts["already there"] ?? 0), crisis: number(counts["marked as crisis"] ?? 0) }) : "";
    if (counts) file.value = "";
  };
  return formCard(`${say("import_title")} · ${project.name}`, say("import"), act, make("p", { class: "soft", text: say("import_why") }), field(say("file"), file),
    make("div", { class: "pair" }, field(say("kind"), kind), field(say("priority"), priority)), result);
}

function exportCard(project) {
  const ways = [["ours", "export_zip"], ...(project.task === "steps" ? [["records", "export_records"]] : [])];
  return make("section", { class: "card" }, make("h3", { text: `${say("export_title")} · ${project.name}` }), make("p", { class: "soft", text: say("export_why") }),
    make("ul", { class: "links" }, ...ways.map(([format, words]) => make("li", {}, make("a", { href: `/api/export?project=${project.id}&format=${format}`, download: true, "data-format": format, text: say(words) })))));
}

function guidelinesCard(page, project, text) {
  const words = make("textarea", { rows: "12", maxlength: "200000", dir: "auto", id: "guidelines-text" });
  words.value = text;
  const preview = make("div", { class: "preview", id: "guidelines-preview" });
  const draw = () => preview.replaceChildren(...markdown(words.value));
  words.addEventListener("input", draw);
  draw();
  const act = async () => {
    const reply = await page.attempt(() => call("PUT", `/api/projects/${project.id}/guidelines`, { text: words.value }));
    if (reply) result.textContent = say("guidelines_saved", reply);
  };
  const result = make("p", { class: "result", role: "status", text: say("version", { version: project.guidelines }) });
  return formCard(`${say("guidelines_edit")} · ${project.name}`, say("guidelines_save"), act,
    make("div", { class: "halves" }, field(say("guidelines_markdown"), words), make("div", { class: "field" }, make("p", { class: "soft", text: say("preview") }), preview)), result);
}

function settingsCard(page, project) {
  const inputs = ["lease_minutes", "correction_seconds", "gold_every", "daily_cap"].map((name) => make("input", { type: "number", name, min: { gold_every: "2", correction_seconds: "0" }[name] ?? "1", required: name !== "daily_cap", value: project[name] ?? "" }));
  const result = make("p", { class: "result", role: "status" });
  const act = async () => {
    const values = Object.fromEntries(inputs.map((input) => [input.name, input.value ? Number(input.value) : null]));
    if (!(await page.attempt(() => call("PUT", `/api/projects/${project.id}/settings`, values)))) return;
    await page.reread();
    result.textContent = say("done");
  };
  return formCard(`${say("settings_title")} · ${project.name}`, say("save"), act, make("div", { class: "three" }, ...inputs.map((input) => field(say(input.name), input))), result);
}

function deleteCard(page) {
  const dialogue = make("input", { required: true, maxlength: "400", autocomplete: "off" });
  const result = make("p", { class: "result", role: "status" });
  const act = async () => {
    if (!(await page.sure(say("delete_sure", { dialogue: dialogue.value }), say("delete_why"), say("delete")))) return;
    const reply = await page.attempt(() => call("DELETE", `/api/dialogues/${encodeURIComponent(dialogue.value)}`));
    if (reply) result.textContent = say("deleted", { items: number(reply.items) });
  };
  const card = formCard(say("delete_title"), say("delete"), act, make("p", { class: "soft", text: say("delete_why") }), field(say("dialogue"), dialogue), result);
  card.querySelector("button").className = "danger";
  return card;
}
