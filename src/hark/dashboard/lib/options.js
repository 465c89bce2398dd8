// The options of a queue as a form.
//
//   optionsForm(options) -> {element, read()}   a form of all options; read() returns their values
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
      int("leaseTime", "Lease time", "s", 300, 1, YEARS_10, "A consumer must settle or renew within this time."),
      int("priority", "Priority", "", 0, -1_000_000, 1_000_000, "A pop from several queues starts with the highest."),
      int("delayedProcessing", "Delivery delay", "s", 0, 0, YEARS_10, "Minimum age of a message at delivery."),
      int("windowBuffer", "Window buffer", "s", 0, 0, 31_536_000, "Delivers a partition after this time without a push."),
      int("maxInFlight", "Maximum in flight", "messages", 0, 0, 1e9, "Over all groups. 0 means no limit."),
      number("rateLimit", "Rate limit", "messages/s", 0, 0, 1e6, "Maximum delivery rate. 0 means no limit."),
      int("rateBurst", "Rate burst", "messages", 0, 0, 1e9, "Size of a burst after a pause. Needs a rate limit."),
      int("lockDuration", "Lock duration", "ms", 0, 0, YEARS_10 * 1000, "Lease time in the key-value API. 0: server default."),
    ],
  ],
  [
    "Retries",
    [
      int("retryLimit", "Retries", "", 3, 0, 1000, "Delivery attempts after the first one."),
      int("retryDelay", "First delay", "ms", 0, 0, YEARS_10 * 1000, "Delay before the first retry."),
      number("retryMultiplier", "Multiplier", "×", 1, 1, 1000, "Factor between one retry delay and the next."),
      int("retryMaxDelay", "Maximum delay", "ms", 3_600_000, 0, YEARS_10 * 1000, "Upper limit of the retry delay."),
      bool("deadLetterQueue", "Keep dead letters", true, "Off: Hark drops these messages instead."),
      bool("dlqAfterMaxRetries", "Dead-letter after the last retry", true, "Off: Hark drops the message and counts it."),
    ],
  ],
  [
    "Retention",
    [
      int("maxSize", "Maximum size", "messages", 0, 0, Number.MAX_SAFE_INTEGER, "Hark rejects pushes beyond this number of unsettled messages. 0 means no limit."),
      int("ttl", "Time to live", "s", 0, 0, YEARS_100, "Older messages expire undelivered. 0: never."),
      int("maxWaitTimeSeconds", "Maximum wait", "s", 0, 0, YEARS_100, "Removes unsettled messages at this age. 0: never."),
      bool("retentionEnabled", "Remove by age", false, "Enables the next two options."),
      int("retentionSeconds", "Remove all after", "s", 0, 0, YEARS_100, "Settled or not. 0: never."),
      int("completedRetentionSeconds", "Remove settled after", "s", 0, 0, YEARS_100, "Settled by all groups. 0: server default."),
      bool("dropSettled", "Remove when settled", false, "Immediately. New groups cannot replay messages."),
      bool("encryptionEnabled", "Encrypt payloads", false, "In the store. The server needs an encryption key."),
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

// The web browser checks the limits when a form is submitted; an empty input means the default.
function readNumber(option, input) {
  return input.value === "" ? option.first : Number(input.value);
}
