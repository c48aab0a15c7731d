"use strict";
// A report: answers that were worked out before, chosen by GPU and micro-batch.
const report = JSON.parse(byId("answers").textContent);

function choose(gpu, micro) {
  const answer = report.answers[`${gpu} ${micro}`] ?? report.answers[report.start];
  show(answer.parts);
  showCommands(answer.commands);
  document.querySelectorAll(".matrix button").forEach((button) => {
    button.setAttribute("aria-pressed", String(button.dataset.gpu === gpu && button.dataset.micro === String(micro)));
  });
}

function fromAddress() {
  const chosen = new URLSearchParams(location.hash.slice(1));
  const [gpu, micro] = report.start.split(" ");
  choose(chosen.get("gpu") ?? gpu, chosen.get("micro") ?? micro);
}

show({ matrix: report.matrix });
byId("matrix").onclick = (event) => {
  const button = event.target.closest("button");
  if (button) location.hash = new URLSearchParams({ gpu: button.dataset.gpu, micro: button.dataset.micro });
};
addEventListener("hashchange", fromAddress);
fromAddress();
