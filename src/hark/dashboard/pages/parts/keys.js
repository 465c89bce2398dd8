// Shared functions of the pages about keys.
//
//   keyText(key)             a key as a path where that is unambiguous, else as JSON
//   keyHash(key)             the address of its page
//   keyPath(key)             its route on the server
//   pathOf(text)             the route of a key that the user typed: users/17, or ["users", "17"]
//   setKey({path, value, seconds})   write it; value: JSON text

import { JsonText, put, url } from "../../lib/api.js";

const LOOKS_LIKE_A_NUMBER = /^-?\d+$/;

export function keyText(key) {
  const plain = key.every((part) => (typeof part === "string" ? part !== "" && !part.includes("/") && !part.startsWith("[") && !LOOKS_LIKE_A_NUMBER.test(part) : Number.isInteger(part)));
  return plain ? key.join("/") : JSON.stringify(key);
}

export function keyHash(key) {
  return `#/keys/${encodeURIComponent(JSON.stringify(key))}`;
}

export function keyPath(key) {
  return url`/keyval/api/keys/${JSON.stringify(key)}`;
}

export function pathOf(text) {
  const typed = text.trim();
  if (typed === "") throw new Error("Enter a key, for example users/ada.");
  if (typed.startsWith("[")) return url`/keyval/api/keys/${typed}`;
  return `/keyval/api/keys/${typed.split("/").map(encodeURIComponent).join("/")}`;
}

export function setKey({ path, value, seconds }) {
  const query = seconds ? `?expiresIn=${Math.round(Number(seconds) * 1000)}` : "";
  return put(path + query, new JsonText(value));
}
