// The options of a queue as a form.
//
//   optionsForm(options) -> {element, read()}   all of them; read() answers all of them
//   OPTIONS   [[title, [option]]]; an option: {name, label, unit, hint, type: "int" | "number" | "bool", least, most, first}

import { h } from "./dom.js";
import { field } from "./ui.js";

const YEARS_10 = 315_360_000;
const YEARS_100 = 3_153_600_000;
const int = (name, label, unit, first, least, most, hint) => ({ name, label, unit, first, least, most, hint, type: "int" });
const number = (...parts) => ({ ...int(...parts), type: "number" });
const bool = (name, label, first, hint) => ({ name, label, first, hint, type: "bool" });

export const OPTIONS = [
  [
    "Delivery",
    [
      int("leaseTime", "Lease time", "s", 300, 1, YEARS_10, "How long a consumer holds what it popped."),
      int("priority", "Priority", "", 0, -1_000_000, 1_000_000, "Pops over several queues take from the highest first."),
      int("delayedProcessing", "Delayed processing", "s", 0, 0, YEARS_10, "Messages are delivered from this age on."),
      int("windowBuffer", "Window buffer", "s", 0, 0, 31_536_000, "A partition is delivered when it got nothing for so long."),
      int("maxInFlight", "Most in flight", "messages", 0, 0, 1e9, "On leases at once, over all groups. 0: no bound."),
      number("rateLimit", "Rate limit", "messages/s", 0, 0, 1e6, "Delivered at most. 0: no bound."),
      int("rateBurst", "Rate burst", "messages", 0, 0, 1e9, "Delivered at once after a pause; needs a rate limit."),
      int("lockDuration", "Lock duration", "ms", 0, 0, YEARS_10 * 1000, "For consumers of the key-value API. 0: as the server is set."),
    ],
  ],
  [
    "Retries",
    [
      int("retryLimit", "Retries", "", 3, 0, 1000, "Attempts after the first."),
      int("retryDelay", "First delay", "ms", 0, 0, YEARS_10 * 1000, "Wait before the first retry."),
      number("retryMultiplier", "Multiplier", "×", 1, 1, 1000, "Each further wait is longer by this."),
      int("retryMaxDelay", "Longest delay", "ms", 3_600_000, 0, YEARS_10 * 1000, "No wait is longer than this."),
      bool("deadLetterQueue", "Keep dead letters", true, "Off: there are none at all."),
      bool("dlqAfterMaxRetries", "Dead letter after the last retry", true, "Off: the message is dropped and counted."),
    ],
  ],
  [
    "Keeping",
    [
      int("maxSize", "Most stored", "messages", 0, 0, Number.MAX_SAFE_INTEGER, "Beyond it pushes are refused. 0: no bound."),
      int("ttl", "Time to live", "s", 0, 0, YEARS_100, "Not delivered from this age on. 0: always."),
      int("maxWaitTimeSeconds", "Longest wait", "s", 0, 0, YEARS_100, "Removed at this age if not settled. 0: never."),
      bool("retentionEnabled", "Remove by age", false, "Whether the next two have an effect."),
      int("retentionSeconds", "Remove all after", "s", 0, 0, YEARS_100, "Consumed or not. 0: never."),
      int("completedRetentionSeconds", "Remove settled after", "s", 0, 0, YEARS_100, "0: as the server is set."),
      bool("dropSettled", "Drop what is settled", false, "At once; later groups find nothing to replay."),
      bool("encryptionEnabled", "Encrypt payloads", false, "At rest; the server needs a key."),
    ],
  ],
];

export function optionsForm(options = {}) {
  const inputs = new Map();
  const sets = OPTIONS.map(([title, all]) => {
    const fields = all.map((option) => {
      const input = inputFor(option, options[option.name] ?? option.first);
      inputs.set(option, input);
      return field(option.unit ? `${option.label} (${option.unit})` : option.label, input, { hint: option.hint });
    });
    return h("fieldset", { class: "fieldset" }, h("legend", null, title), h("div", { class: "fields" }, fields));
  });
  const read = () => {
    const given = {};
    for (const [option, input] of inputs) given[option.name] = option.type === "bool" ? input.checked : readNumber(option, input);
    return given;
  };
  return { element: h("div", { class: "sets" }, sets), read };
}

function inputFor({ name, type, least, most }, value) {
  if (type === "bool") return h("input", { type: "checkbox", name, checked: value });
  return h("input", { type: "number", name, value: String(value), min: least, max: most, step: type === "int" ? 1 : "any", required: true, inputmode: "decimal" });
}

// The browser has checked the bounds when a form is submitted; an empty input is the default.
function readNumber(option, input) {
  return input.value === "" ? option.first : Number(input.value);
}
