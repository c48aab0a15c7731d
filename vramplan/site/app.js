"use strict";
// The page: reads the controls as a command line, asks the worker, and places what it answers. No number is computed here.
const lists = JSON.parse(byId("lists").textContent);
const form = byId("controls");
const isServed = location.protocol !== "file:"; // browsers start no worker from a file
const LONG = 1; // seconds of an answer from which on another worker gives it, so that the next change need not wait for it
const asked = new Map();
let lastId = 0;
let rounds = 0;
let files = {};
let columns = [];
let texts = {};
let isReady = false;
const MOST_BYTES = 1 << 30; // of a worker's memory, which it does not give back: a new one takes its place
const workers = { first: null, second: null };
const STAGES = { python: "Loading Python …", packages: "Loading vramplan …", ready: "Estimating …" };

for (const name of lists.models) byId("models").append(new Option(name, name));
for (const [name, title, size] of lists.gpus) form.gpu.append(new Option(`${title}, ${size} GiB`, name));
form.gpu.value = "rtx4090";

// -- the controls as a command line
function value(control) {
  return control.dataset.scale === "power" ? String(Math.round(2 ** Number(control.value))) : control.value.trim();
}

// A control that has no meaning beside the value of another: any but those it is only for, or 1; nor beside one that has none.
function isOff(control) {
  const { needs, only } = control.dataset;
  if (!needs) return false;
  return isOff(form[needs]) || (only ? !only.split(" ").includes(form[needs].value) : form[needs].value === "1");
}

function flags() {
  const words = [];
  for (const control of form.elements) {
    const { flag } = control.dataset;
    if (!flag || isOff(control) || !value(control)) continue;
    if (value(control) === "true") words.push(flag);
    else if (control.dataset.default !== value(control)) words.push(flag, value(control));
  }
  return words;
}

let lastLine = [];

function commandLine() {
  return ["suggest", form.model.value.trim(), ...flags()];
}

function lineOfPlan(micro) {
  const steps = Number(form.batch.value) / (micro * Number(form.gpus.value));
  const words = commandLine();
  words.splice(words.indexOf("--global-batch"), 2);
  return ["estimate", ...words.slice(1), "--micro-batch", String(micro), "--accumulation", String(steps)];
}

// -- questions and answers
function ask(topic, words, answered) {
  const round = rounds;
  const question = {
    topic, to: topic === "answer" && workers.second ? "second" : "first",
    message: { id: ++lastId, topic, request: { words, files } },
    answered: (answer) => { if (round === rounds) answered(answer); }, // else the controls have changed
  };
  asked.set(lastId, question);
  workers[question.to].postMessage(question.message);
}

function renew(name) {
  workers[name].terminate();
  workers[name] = start();
  for (const question of asked.values()) if (question.to === name) workers[name].postMessage(question.message);
}

function start() {
  const started = new Worker("worker.js", { type: "module" });
  started.onmessage = hear;
  started.onerror = ({ message }) => say(`worker.js does not run in this browser${message ? `: ${message}` : ""}`, true);
  return started;
}

function hear({ data }) {
  if (data.stage) return isReady || say(STAGES[data.stage]);
  if (!("id" in data)) return say(data.failure, true);
  const { topic, to, answered } = asked.get(data.id) ?? {};
  asked.delete(data.id);
  if (data.heap > MOST_BYTES) renew(to);
  if (data.dropped || !answered) return;
  if (data.failure) return say(data.failure, true);
  isReady = true;
  if (topic === "answer" && data.seconds > LONG) workers.second ??= start();
  answered(data.answer);
}

function say(text, isError = false) {
  byId("status").textContent = text;
  byId("status").classList.toggle("bad", isError);
  document.querySelector("main").classList.toggle("stale", text !== "" && !isError);
  document.querySelector("main").classList.toggle("failed", isError); // hides what was answered to other settings
}

function failure(answer) {
  return answer.error.trim().split("\n").at(-1).replace("vramplan: ", "");
}

function parts(html) {
  const parsed = new DOMParser().parseFromString(html, "text/html");
  return Object.fromEntries([...parsed.querySelectorAll("[data-part]")].map((part) => [part.dataset.part, part.innerHTML]));
}

function place(answer, names) {
  if (answer.code === 2 || answer.code === 70) return say(failure(answer), true);
  placeParts(answer, names);
  if (names.includes("head")) say("");
}

function placeParts(answer, names) {
  const found = parts(answer.text);
  show(Object.fromEntries(names.map((name) => [name, found[name]])));
  addButtons();
  if (names.includes("details")) byId("details").classList.remove("old");
  if (names.includes("head")) sayTokens(byId("head").querySelector("[data-length]").dataset.length);
}

// A search takes several estimates. The plan that is shown is estimated first: if it still fits, its new numbers are seen
// at once, and the search says later whether a larger micro-batch fits too.
function askForShownPlan() {
  const shown = Number(form.micro.dataset.best);
  if (!shown || Number(form.batch.value) % (shown * Number(form.gpus.value))) return;
  ask("shown", [...lineOfPlan(shown), "--html"], (answer) => {
    if (answer.code !== 0) return;
    placeParts(answer, ["head", "pictures"]);
    say("Looking for a larger micro-batch …");
    document.querySelector("main").classList.remove("stale");
  });
}

function update() {
  form.dataset.round = ++rounds; // seen from outside: the page has asked
  for (const part of [...document.querySelectorAll(".matrix tbody tr"), byId("details")]) part.classList.add("old");
  document.querySelectorAll(".matrix .none").forEach((cell) => cell.remove());
  if (form.model.value.trim() === "config.json" && !files["config.json"]) return say("config.json: this browser does not have the file, drop it here", true);
  say(isReady ? "Estimating …" : STAGES.python);
  for (const control of form.elements) control.disabled = isOff(control);
  byId("more").querySelector("summary").textContent = `More settings${chosenIn(byId("more")) ? `: ${chosenIn(byId("more"))} chosen` : ""}`;
  const line = commandLine();
  lastLine = line;
  const micro = Number(form.micro.dataset.chosen);
  texts = { vramplan: pasted(shownLine()) };
  for (const [, title] of lists.frameworks) texts[title] = undefined;
  showCommands(texts);
  let isComplete = false; // the whole answer has the changes that would help, which its beginning has not
  if (micro) ask("plan", [...lineOfPlan(micro), "--html"], (answer) => place(answer, ["head", "pictures"]));
  else {
    askForShownPlan();
    ask("plan", [...line, "--html", "plan"], (answer) => isComplete || place(answer, ["head", "pictures"]));
  }
  ask("row", [...line, "--html", "row"], (answer) => placeRow(answer, form.gpu.value));
  ask("answer", [...line, "--html", "answer"], (answer) => {
    isComplete = true;
    place(answer, micro ? ["details"] : ["head", "pictures", "details"]);
  });
  const others = lists.rows.filter((name) => name !== form.gpu.value);
  others.forEach((name) => ask(`row ${name}`, [...withGpu(line, name), "--html", "row"], (answer) => placeRow(answer, name)));
  askForLines();
  sayTokens(value(form.tokens));
}

function chosenIn(place) {
  return [...place.querySelectorAll("[data-flag]")].filter((control) => !control.disabled && value(control)).length;
}

function withGpu(line, name) {
  const words = [...line];
  words[words.indexOf("--gpu") + 1] = name;
  return words;
}

function pasted(words) {
  const line = ["vramplan", ...words].map((word) => (/^[\w./:@%+=,-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`));
  return line.join(" ").replaceAll(" --", " \\\n  --");
}

function size(control, text) {
  control.closest("label").querySelector("b").textContent = text;
}

// The length that counts: a model with images takes a longer one than the slider's if it has not been moved.
function sayTokens(length) {
  const text = Number(length).toLocaleString("en");
  size(form.tokens, text);
  form.tokens.setAttribute("aria-valuetext", `${text} tokens`);
  const chosen = (control) => control.selectedOptions[0].textContent;
  const short = [form.model.value.split("/").at(-1), chosen(form.gpu), chosen(form.method), `${text} tokens`];
  byId("shown").textContent = short.join(", ");
}

// -- the table of GPUs: a row for each answer
const order = new Map(lists.gpus.map(([name], number) => [name, number]));

function placeRow(answer, name) {
  const place_ = byId("matrix");
  if (!place_.querySelector("tbody")) place_.innerHTML = lists.matrix;
  const body = place_.querySelector("tbody");
  const holder = document.createElement("tbody");
  holder.innerHTML = answer.text;
  const row = holder.rows[0] ?? cannotRun(answer, name);
  const focused = document.activeElement?.dataset ?? {};
  row.dataset.row = name;
  body.querySelector(`[data-row="${name}"]`)?.remove();
  const after = [...body.rows].find((other) => order.get(other.dataset.row) > order.get(name));
  body.insertBefore(row, after ?? null);
  [...body.rows].forEach((other) => { if (!lists.rows.includes(other.dataset.row) && other.dataset.row !== form.gpu.value) other.remove(); });
  if (name === form.gpu.value && row.cells[1]?.dataset.size) setColumns(row);
  press();
  if (focused.gpu === name) row.querySelector(`[data-micro="${focused.micro}"]`)?.focus();
}

function cannotRun(answer, name) {
  const row = document.createElement("tr");
  const [, title, size] = lists.gpus.find(([other]) => other === name) ?? [name, name, ""];
  const head = element("th", `${title} `);
  head.append(element("small", size));
  const cell = element("td", "cannot run it", "none");
  cell.colSpan = Math.max(1, columns.length);
  cell.title = failure(answer);
  row.append(head, cell);
  return row;
}

function setColumns(row) {
  const before = columns.join();
  columns = [...row.cells].slice(1).map((cell) => Number(cell.dataset.size));
  if (before !== columns.join()) document.querySelectorAll(".matrix .old td").forEach((cell) => cell.remove());
  const head = byId("matrix").querySelector("thead tr");
  head.replaceChildren(head.cells[0], ...columns.map((column) => element("th", String(column))));
  const fitting = [...row.querySelectorAll("button")].map((button) => Number(button.dataset.micro));
  form.micro.max = String(columns.length);
  const chosen = Number(form.micro.dataset.chosen);
  if (chosen && !columns.includes(chosen)) { form.micro.dataset.chosen = ""; update(); return; }
  form.micro.value = String(chosen ? columns.indexOf(chosen) + 1 : 0);
  form.micro.setAttribute("aria-valuetext", chosen ? String(chosen) : "recommended");
  form.micro.dataset.best = String(fitting.at(-1) ?? "");
  size(form.micro, chosen ? `${chosen}` : "recommended");
}

function press() {
  const chosen = form.micro.dataset.chosen || form.micro.dataset.best;
  document.querySelectorAll(".matrix button").forEach((button) => {
    const isShown = button.dataset.gpu === form.gpu.value && button.dataset.micro === chosen;
    button.setAttribute("aria-pressed", String(isShown));
  });
}

byId("matrix").onclick = (event) => {
  const cell = event.target.closest("td.fit,td.near");
  if (!cell) return;
  form.gpu.value = cell.closest("tr").dataset.row;
  form.micro.dataset.chosen = cell.dataset.size;
  changed();
};

// -- changes that would help
const fieldOf = (name) => form.querySelector(`[data-field="${name}"]`);

function addButtons() {
  for (const row of document.querySelectorAll("[data-apply]")) {
    const fields = Object.entries(JSON.parse(row.dataset.apply));
    if (row.querySelector(".primary") || !fields.every(([name]) => fieldOf(name))) continue;
    const button = element("button", "Apply", "primary");
    button.type = "button";
    button.onclick = () => { fields.forEach(([name, text]) => set(fieldOf(name), text)); changed(); };
    (row.tagName === "TR" ? row.insertCell() : row).append(button);
  }
}

function set(control, text) {
  const wanted = String(Array.isArray(text) ? text.join("x") : text);
  choose(control, control.dataset.scale === "power" ? String(Math.log2(Number(wanted))) : wanted);
}

// A value that a list lacks is added to it: it is answered, or refused by its name.
function choose(control, wanted) {
  if (control.tagName === "SELECT" && ![...control.options].some((option) => option.value === wanted)) control.append(new Option(wanted, wanted));
  control.value = wanted;
}

// -- what to paste
byId("commands").addEventListener("chosen", askForLines);

function askForLines() {
  const name = byId("commands").dataset.chosen;
  const framework = lists.frameworks.find(([, title]) => title === name);
  if (!framework || texts[name] !== undefined) return;
  ask("for", [...shownLine(), "--for", framework[0]], (answer) => {
    const said = answer.error.trim().split("\n").filter(Boolean).map((line) => `# ${line.replace("vramplan: ", "")}\n`);
    texts[name] = answer.text + said.join("") || "# nothing fits";
    showCommands(texts);
  });
}

function shownLine() {
  const micro = Number(form.micro.dataset.chosen);
  return micro ? lineOfPlan(micro) : commandLine();
}

// -- the address holds the state
function state() {
  const named = new URLSearchParams();
  for (const control of form.elements) {
    const counts = control.name && control.type !== "file" && control.name !== "micro" && !isOff(control);
    if (counts && control.value !== control.dataset.start) named.set(control.name, control.value);
  }
  if (form.micro.dataset.chosen) named.set("micro", form.micro.dataset.chosen);
  return named.toString();
}

function restore() {
  const named = new URLSearchParams(location.hash.slice(1));
  for (const control of form.elements) {
    if (control.name && control.name !== "micro" && control.type !== "file") choose(control, named.get(control.name) ?? control.dataset.start);
  }
  form.micro.dataset.chosen = /^\d+$/.test(named.get("micro") ?? "") ? named.get("micro") : "";
  update();
  if (chosenIn(byId("more"))) byId("more").open = true;
}

function changed(isMoving = false) {
  const wrong = [...form.elements].find((control) => !isOff(control) && control.willValidate && !control.validity.valid);
  if (wrong) return say(`${wrong.closest("label").firstChild.textContent.trim()}: ${wrong.validationMessage}`, true);
  const next = state();
  const address = next ? `#${next}` : location.pathname;
  if (next !== location.hash.slice(1)) history[isMoving ? "replaceState" : "pushState"](null, "", address);
  update();
}

let timer;
let dragged = null; // the slider that is being moved: its steps are one entry of the history
const isListed = new Set(lists.models.map((name) => name.toLowerCase()));
form.addEventListener("input", ({ target }) => {
  if (target === form.model && !isListed.has(target.value.trim().toLowerCase())) return; // a name that is not complete yet
  if (target === form.task && ["grpo", "rloo", "ppo"].includes(target.value) && !form.prompt.value) form.prompt.value = "512"; // which they need
  if (target === form.task && target.value === "gkd" && !form.teacher.value) form.teacher.value = form.model.value; // a teacher of the same vocabulary
  if (target === form.micro) {
    target.dataset.chosen = Number(target.value) ? String(columns[Number(target.value) - 1]) : "";
    size(target, target.dataset.chosen || "recommended");
  } else form.micro.dataset.chosen = "";
  clearTimeout(timer);
  const isMoving = target.type === "range" && dragged === target;
  dragged = target.type === "range" ? target : null;
  timer = setTimeout(() => changed(isMoving), target.type === "range" ? 0 : 250);
});
form.addEventListener("change", ({ target }) => {
  dragged = null;
  if (target === form.model && target.value !== lastLine[1]) changed();
});
form.model.onfocus = () => form.model.select(); // the list shows what begins like the text that is there
form.addEventListener("submit", (event) => event.preventDefault());
addEventListener("popstate", restore);
addEventListener("hashchange", restore);

// -- a model's own file
addEventListener("dragover", (event) => event.preventDefault());
addEventListener("drop", (event) => {
  event.preventDefault();
  take(event.dataTransfer.files[0]);
});
byId("file").onchange = () => take(byId("file").files[0]);

async function take(file) {
  if (!file) return;
  if (!file.name.endsWith(".json") || file.size > 4 << 20) return say(`${file.name}: expected a config.json of at most 4 MiB`, true);
  files = { "config.json": await file.text() };
  try { sessionStorage.setItem("config.json", files["config.json"]); } catch { /* too large to be kept for a reload */ }
  form.model.value = "config.json";
  changed();
}

byId("link").onclick = () => copyText(byId("link"), location.href);
byId("keep").onclick = () => {
  const kept = byId("kept");
  const copy = byId("head").cloneNode(true);
  copy.removeAttribute("id");
  copy.querySelectorAll(".lever,.note,.keys").forEach((part) => part.remove());
  const bar = byId("pictures").querySelector("section")?.cloneNode(true);
  const remove = element("button", "Remove", "ghost");
  remove.type = "button";
  remove.onclick = () => { kept.hidden = true; };
  const title = element("h2", "Kept to compare ");
  title.append(remove);
  kept.replaceChildren(title, copy, ...(bar ? [bar] : []));
  kept.hidden = false;
};

if (matchMedia("(max-width:640px)").matches) byId("settings").open = false;
for (const control of form.elements) control.dataset.start = control.type === "file" ? "" : control.value;
try { if (sessionStorage.getItem("config.json")) files = { "config.json": sessionStorage.getItem("config.json") }; } catch { /* none */ }
if (isServed) {
  workers.first = start();
  restore();
} else {
  const folder = decodeURIComponent(location.pathname).replace(/\/[^/]*$/, "").replace(/^\/([A-Za-z]:)/, "$1");
  say(`This page needs a server of files: run  python -m http.server -d "${folder}"  and open localhost:8000`, true);
  for (const control of form.elements) control.disabled = true;
}
