// Small pieces of the page: elements, text with numbers that can be tapped, the curve of feelings.
// Text from outside only ever becomes a text node, so that nothing in it can act as markup.

import { felt, say } from "./words.js";

/** An element with properties (`class`, `text`, attributes) and children; a child that is null is left out. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "text") element.textContent = value;
    else if (name === "click") element.addEventListener("click", value);
    else if (value !== false && value != null) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child != null));
  return element;
}

/** Sets an element's text if it is another one: an unchanged element keeps selection and scroll place. */
export function set(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// --- numbers and addresses -------------------------------------------------------------------------------------------

const ADDRESS = String.raw`https:\/\/[^\s()（）<>"'，。；]+|\b(?:[a-z0-9-]+\.)+(?:com|org)\b(?:\/[^\s()（）<>"'，。；]*)?`;
const LONG_NUMBER = String.raw`(?<![\w*+:/.–-])[*+]?\d(?:[ -]?\d){2,14}(?![\d:/–])`;
const SHORT_NUMBER = String.raw`(?<=(?:\bcall |emergency: |拨打 ?|紧急电话：))\d\d(?![\d:/–])`; // France: 15, 17
const TO_TAP = new RegExp(`(${ADDRESS})|(?:${LONG_NUMBER}|${SHORT_NUMBER})`, "gi");
const BY_TEXT_MESSAGE = /(?:\btext(?: \S+ to)? |短信(?: ?\S+ ?到|到)? ?)$/i;
const BY_OTHER_MEANS = /WhatsApp $/i;

/** A line of the guard as nodes: its telephone numbers and addresses are links, all else stays text. */
function tappable(text) {
  const name = /^- [^:：]*[:：]/.exec(text)?.[0] ?? ""; // of a help line; a number in it is not the number to tap
  const nodes = [];
  let from = 0;
  for (const match of text.matchAll(TO_TAP)) {
    const [whole, address] = match;
    const before = text.slice(0, match.index);
    if (match.index < name.length || (!address && BY_OTHER_MEANS.test(before))) continue;
    nodes.push(text.slice(from, match.index));
    const digits = whole.replace(/[^\d*+]/g, "");
    const goal = address ? (/^https:/i.test(address) ? address : `https://${address}`) : `${BY_TEXT_MESSAGE.test(before) ? "sms" : "tel"}:${digits}`;
    nodes.push(make("a", { href: goal, text: whole, ...(address ? { target: "_blank", rel: "noopener noreferrer" } : {}) }));
    from = match.index + whole.length;
  }
  return [...nodes, text.slice(from)].filter((node) => node !== "");
}

/** Text as paragraphs, its "- " lines as lists. `linked` says whether its numbers and addresses can be tapped. */
export function paragraphs(text, linked) {
  const inside = (line) => (linked ? tappable(line) : [line]);
  const entry = ([first, ...others]) => make("li", {}, first.replace(/^- /, ""), ...others); // a text always comes first
  return text.split(/\n{2,}/).flatMap(runs).map(({ listed, lines }) => (
    listed ? make("ul", {}, ...lines.map((line) => entry(inside(line)))) : make("p", {}, ...inside(lines.join("\n")))
  ));
}

/** The lines of a block, those of a list apart from the others. */
function runs(block) {
  const found = [];
  for (const line of block.split("\n")) {
    const listed = line.startsWith("- ");
    if (found.at(-1)?.listed === listed) found.at(-1).lines.push(line);
    else found.push({ listed, lines: [line] });
  }
  return found;
}

/** The language of a text, as far as its signs tell: for the voice of a screen reader. */
export const languageOf = (text, otherwise) => (/[\u3400-\u9fff]/.test(text) ? "zh" : otherwise);

// --- the curve -------------------------------------------------------------------------------------------------------

const WIDE = 260, HIGH = 104, SIDE = 12, MIDDLE = HIGH / 2, UNIT = 8.4;

function drawn(tag, attributes, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

/** The feelings of a conversation as a small drawing: better above the line, worse below, further out is stronger. */
export function curve(points) {
  if (!points.length) return make("p", { class: "soft", text: say("curve_empty") });
  const named = points.map((point) => say("curve_point", { turn: point.turn, felt: felt(point) }));
  const svg = drawn("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img", "aria-label": named.join("; ") });
  const last = points.at(-1).turn;
  const across = (turn) => (last === 1 ? WIDE / 2 : SIDE + ((turn - 1) / (last - 1)) * (WIDE - 2 * SIDE));
  const down = (value) => MIDDLE - value * UNIT;
  svg.append(
    drawn("line", { class: "zero", x1: 0, x2: WIDE, y1: MIDDLE, y2: MIDDLE }),
    drawn("text", { class: "side", x: 2, y: 11 }, say("curve_up")),
    drawn("text", { class: "side", x: 2, y: HIGH - 4 }, say("curve_down")),
    drawn("polyline", { class: "curve", points: points.map((point) => `${across(point.turn)},${down(point.value)}`).join(" ") }),
  );
  points.forEach((point, index) => {
    const dot = drawn("circle", { class: "dot", cx: across(point.turn), cy: down(point.value), r: index === points.length - 1 ? 5 : 3.5 });
    dot.append(drawn("title", {}, named[index]));
    svg.append(dot);
  });
  return make("figure", {}, svg, make("figcaption", {}, make("b", { text: named.at(-1) }), make("span", { class: "soft", text: say("curve_note") })));
}

// --- pictures --------------------------------------------------------------------------------------------------------

const LARGEST = 1024;

/** A picture file as a data address: made smaller and drawn anew, so that its name, place and camera stay here. */
export async function readPicture(file) {
  const picture = await createImageBitmap(file);
  const scale = Math.min(1, LARGEST / Math.max(picture.width, picture.height));
  const canvas = make("canvas", { width: Math.max(1, Math.round(picture.width * scale)), height: Math.max(1, Math.round(picture.height * scale)) });
  const brush = canvas.getContext("2d");
  brush.fillStyle = "#fff";
  brush.fillRect(0, 0, canvas.width, canvas.height);
  brush.drawImage(picture, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL("image/jpeg", 0.85);
}
