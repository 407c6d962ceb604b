// Logging in, and joining by an invitation. The invitation stands in the address after "#", which browsers do not send.

import { Failure, call } from "./server.js";
import { begin } from "./session.js";
import { say, speak } from "./words.js";

const at = (id) => document.getElementById(id);
const SHORTEST = 10;
let invitation = location.pathname === "/join" ? decodeURIComponent(location.hash.slice(1)) : "";

function draw() {
  const joining = Boolean(invitation);
  at("title").textContent = say(joining ? "join" : "login");
  at("why").textContent = say(joining ? "join_why" : "login_why");
  at("enter").textContent = say(joining ? "join" : "login");
  at("again-field").hidden = at("instead").hidden = !joining;
  at("again").required = joining;
  at("password").autocomplete = joining ? "new-password" : "current-password";
}

async function enter(event) {
  event.preventDefault();
  const [name, password] = [at("name").value.trim(), at("password").value];
  at("error").textContent = "";
  if (invitation && password.length < SHORTEST) return refuse(say("password_short"), "password");
  if (invitation && password !== at("again").value) return refuse(say("passwords_differ"), "again");
  at("enter").disabled = true;
  try {
    const session = invitation ? await call("POST", "/api/join", { invitation, name, password }) : await call("POST", "/api/login", { name, password });
    begin(session);
    location.replace("/");
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    const known = say(`entry_refused.${invitation ? "join" : "login"}_${error.status}`, { seconds: error.wait });
    const message = known.startsWith("join_") || known.startsWith("login_") ? error.message : known;
    refuse(error.status ? message : say("failed_offline"), error.status === 409 ? "name" : "password");
  } finally {
    at("enter").disabled = false;
  }
}

function refuse(message, field) {
  at("error").textContent = message;
  at(field).focus();
}

speak(draw);
draw();
at("name").focus();
at("entry").addEventListener("submit", enter);
at("instead").addEventListener("click", () => {
  invitation = "";
  history.replaceState(null, "", "/login");
  draw();
  at("name").focus();
});
