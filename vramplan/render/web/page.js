"use strict";
// What the report and the site share: places answers, shows figures under the pointer, copies, changes the theme.
const page = document.querySelector(".vramplan");
const byId = (name) => document.getElementById(name);

function show(parts) {
  for (const [name, html] of Object.entries(parts)) {
    const place = byId(name);
    if (place && place.innerHTML !== html) {
      const open = place.querySelector("details")?.open;
      place.innerHTML = html;
      if (open) place.querySelector("details").open = true;
    }
  }
}

function element(name, text = "", kind = "") {
  const made = document.createElement(name);
  made.textContent = text;
  made.className = kind;
  return made;
}

// -- figures under the pointer
function figures(step) {
  if (!step.figures) step.figures = JSON.parse(step.dataset.step);
  return step.figures;
}

function hover(event) {
  const plot = event.target.closest?.(".plot");
  document.querySelectorAll(".cross,.tip").forEach((old) => old.remove());
  if (!plot) return;
  const { parts, phases, columns } = figures(plot.closest(".step"));
  const box = plot.getBoundingClientRect();
  const share = Math.min(0.9999, Math.max(0, (event.clientX - box.left) / box.width));
  const number = Math.floor(share * columns.length);
  const cross = element("i", "", "cross");
  cross.style.left = `${share * 100}%`;
  const tip = element("div", "", "tip");
  tip.append(element("b", phases.filter(([first]) => first <= number).at(-1)[1]));
  columns[number].forEach((size, part) => {
    if (!size) return;
    const line = element("div");
    line.append(element("i", "", parts[part][0]), `${parts[part][1]} ${(size / 100).toFixed(2)}`);
    tip.append(line);
  });
  tip.style[share < 0.5 ? "left" : "right"] = `${(share < 0.5 ? share : 1 - share) * 100 + 1}%`;
  plot.append(cross, tip);
}
document.addEventListener("pointermove", hover);
document.addEventListener("pointerdown", hover);

// -- tabs of commands
function showCommands(commands) {
  const place = byId("commands");
  const names = Object.keys(commands);
  if (!names.length) return place.replaceChildren();
  const chosen = names.includes(place.dataset.chosen) ? place.dataset.chosen : names[0];
  const box = element("div", "", "commands");
  const tabs = element("div", "", "tabs");
  tabs.setAttribute("role", "tablist");
  for (const name of names) {
    const tab = element("button", name);
    tab.type = "button";
    tab.setAttribute("role", "tab");
    tab.setAttribute("aria-selected", String(name === chosen));
    tab.onclick = () => { place.dataset.chosen = name; showCommands(commands); place.dispatchEvent(new CustomEvent("chosen", { detail: name })); };
    tabs.append(tab);
  }
  const text = element("pre", commands[chosen] ?? "…");
  const copy = element("button", "Copy", "ghost");
  copy.type = "button";
  copy.onclick = () => copyText(copy, text.textContent);
  tabs.append(element("span", "", "space"), copy);
  box.append(tabs, text);
  const hadFocus = place.contains(document.activeElement) && document.activeElement.getAttribute("role") === "tab";
  place.replaceChildren(box);
  if (hadFocus) tabs.querySelector("[aria-selected=true]").focus();
}

async function copyText(button, text) {
  const before = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Select and copy";
  }
  setTimeout(() => { button.textContent = before; }, 1500);
}

// -- theme
function setTheme(theme) {
  page.dataset.theme = theme;
  byId("theme").textContent = theme === "dark" ? "Light" : "Dark";
  try { localStorage.setItem("theme", theme); } catch { /* a file has no storage */ }
}
let stored = null;
try { stored = localStorage.getItem("theme"); } catch { /* a file has no storage */ }
setTheme(stored ?? (matchMedia("(prefers-color-scheme:dark)").matches ? "dark" : "light"));
byId("theme").onclick = () => setTheme(page.dataset.theme === "dark" ? "light" : "dark");
