// People: inviting them, what they may do, and removing them.

import { make } from "../parts.js";
import { call } from "./server.js";
import { field, formCard, table } from "./table.js";
import { number, say } from "./words.js";

const ROLES = ["annotator", "adjudicator", "admin"];

export async function peopleView(page) {
  const { people } = await call("GET", "/api/people");
  return make("div", { class: "cards" }, inviteCard(page), table(say("people_title"), [say("pseudonym"), say("name"), say("roles_title"), say("languages"), say("cap"), say("today_free", { labels: "" }).trim(), ""], people.map((person) => row(page, person))));
}

function boxes(chosen) {
  const inputs = ROLES.map((role) => make("input", { type: "checkbox", value: role, checked: chosen.includes(role) }));
  const element = make("div", { class: "boxes", role: "group", "aria-label": say("roles_title") }, ...inputs.map((input) => make("label", { class: "check" }, input, ` ${say(`roles.${input.value}`)}`)));
  return { element, values: () => inputs.filter((input) => input.checked).map((input) => input.value) };
}

const codes = (text) => text.split(/[\s,;，；]+/).filter(Boolean);

function inviteCard(page) {
  const roles = boxes(["annotator"]);
  const languages = make("input", { value: "en", required: true, autocomplete: "off", id: "invite-languages" });
  const days = make("input", { type: "number", min: "1", max: "365", value: "14", required: true });
  const program = make("input", { type: "checkbox" });
  const made = make("div", { class: "made", role: "status" });
  const act = async () => {
    const told = await page.attempt(() => call("POST", "/api/invitations", { roles: roles.values(), languages: codes(languages.value), program: program.checked, days: Number(days.value) }));
    if (told) made.replaceChildren(...linkOf(page, told));
  };
  return formCard(say("invite_title"), say("invite"), act, roles.element,
    make("div", { class: "pair" }, field(say("languages"), languages, say("languages_hint")), field(say("days"), days)),
    make("label", { class: "check" }, program, ` ${say("for_program")}`), made);
}

function linkOf(page, { link, days }) {
  const shown = make("input", { readonly: true, value: link, id: "invitation-link", "aria-label": say("invite") });
  shown.addEventListener("focus", () => shown.select());
  const copy = async () => {
    shown.select();
    await navigator.clipboard.writeText(link).catch(() => document.execCommand("copy")); // no clipboard without https
    page.tell(say("copied"));
  };
  return [make("p", { text: say("invited", { days }) }), make("div", { class: "line" }, shown, make("button", { type: "button", text: say("copy"), click: copy }))];
}

function row(page, person) {
  const roles = person.roles.map((role) => say(`roles.${role}`)).join(", ");
  const cells = [person.pseudonym, person.active ? person.name : say("left_person"), person.program ? `${roles} (${say("program")})` : roles, person.languages.join(", ")];
  const cap = person.daily_cap == null ? say("cap_none") : number(person.daily_cap);
  const acts = person.active ? make("div", { class: "buttons" },
    make("button", { type: "button", text: say("change"), click: (event) => change(page, person, event.target.closest("tr")) }),
    make("button", { type: "button", class: "danger", text: say("remove"), click: () => remove(page, person) })) : "";
  return [...cells, cap, number(person.today?.labels ?? 0), acts];
}

/** Puts a form in place of a person's row. */
function change(page, person, line) {
  const roles = boxes(person.roles);
  const languages = make("input", { value: person.languages.join(", "), autocomplete: "off" });
  const cap = make("input", { type: "number", min: "1", value: person.daily_cap ?? "" });
  const act = async () => {
    const values = { roles: roles.values(), languages: codes(languages.value), daily_cap: cap.value ? Number(cap.value) : null };
    if (await page.attempt(() => call("PATCH", `/api/people/${person.id}`, values))) page.draw();
  };
  const form = formCard(`${person.pseudonym} · ${person.name}`, say("save"), act, roles.element, make("div", { class: "pair" }, field(say("languages"), languages), field(say("cap"), cap)));
  form.querySelector(".buttons").append(make("button", { type: "button", text: say("cancel"), click: () => page.draw() }));
  line.replaceChildren(make("td", { colspan: "7" }, form));
  languages.focus();
}

async function remove(page, person) {
  if (!(await page.sure(say("remove_sure", { name: person.name }), say("remove_what"), say("remove")))) return;
  await page.attempt(() => call("DELETE", `/api/people/${person.id}`));
  page.draw();
}
