// People: inviting them, withdrawing invitations, what people may do, and removing them.

import { make } from "../parts.js";
import { call } from "./server.js";
import { field, formCard, table } from "./table.js";
import { moment, number, say } from "./words.js";

const ROLES = ["annotator", "adjudicator", "admin"];

export async function peopleView(page) {
  const { people } = await call("GET", "/api/people");
  const open = make("div", { id: "invitations" });
  const drawOpen = async () => open.replaceChildren(await invitationsTable(page, drawOpen));
  await drawOpen();
  return make("div", { class: "cards" }, inviteCard(page, drawOpen), open, table(say("people_title"), [say("pseudonym"), say("name"), say("roles_title"), say("languages"), say("cap"), say("today_free", { labels: "" }).trim(), ""], people.map((person) => row(page, person))));
}

function boxes(chosen) {
  const inputs = ROLES.map((role) => make("input", { type: "checkbox", value: role, checked: chosen.includes(role) }));
  const element = make("div", { class: "boxes", role: "group", "aria-label": say("roles_title") }, ...inputs.map((input) => make("label", { class: "check" }, input, ` ${say(`roles.${input.value}`)}`)));
  return { element, values: () => inputs.filter((input) => input.checked).map((input) => input.value) };
}

const codes = (text) => text.split(/[\s,;，；]+/).filter(Boolean);

function inviteCard(page, drawOpen) {
  const roles = boxes(["annotator"]);
  const languages = make("input", { value: "en", required: true, autocomplete: "off", id: "invite-languages" });
  const days = make("input", { type: "number", min: "1", max: "365", value: "14", required: true });
  const program = make("input", { type: "checkbox" });
  const made = make("div", { class: "made", role: "status" });
  const act = async () => {
    const reply = await page.attempt(() => call("POST", "/api/invitations", { roles: roles.values(), languages: codes(languages.value), program: program.checked, days: Number(days.value) }));
    if (!reply) return;
    made.replaceChildren(...linkOf(page, reply));
    await page.attempt(drawOpen);
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

const rolesOf = ({ roles, program }) => roles.map((role) => say(`roles.${role}`)).join(", ") + (program ? ` (${say("program")})` : "");

/** The invitations that can still be taken up. */
async function invitationsTable(page, drawOpen) {
  const { invitations } = await call("GET", "/api/invitations");
  const withdraw = async (one) => {
    await page.attempt(() => call("DELETE", `/api/invitations/${one.id}`));
    await page.attempt(drawOpen);
  };
  return table(say("invitations_title"), [say("invitation"), say("roles_title"), say("languages"), say("until"), ""], invitations.map((one) => [
    number(one.id), rolesOf(one), one.languages.join(", "), moment(one.expires),
    make("button", { type: "button", class: "danger", text: say("withdraw"), click: () => withdraw(one) })]));
}

function row(page, person) {
  const cells = [person.pseudonym, person.active ? person.name : say("left_person"), rolesOf(person), person.languages.join(", ")];
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
