// Tables that the server returns page by page.
//
//   table(page, options) -> {element, refresh(), reset(), rows(), selected(), clearSelection()}
//     page      the argument of show(); its query keeps search, sort and offset, so that a reload keeps them
//     columns   [{key, label, cell(row), numeric, sort, main, wide}]  cell: text or nodes. sort: a name that load gets as
//               `sort`. main: the row's name, which becomes the title where rows are shown as cards
//     load      async ({limit, offset, search, sort, signal}) -> {rows, total}   total null or absent: not known
//     rowKey(row)    a text that identifies the row
//     search    {label} or none      limit  rows per page, 50      sort  the initial order
//     label     the name of the table, for screen readers
//     filters   nodes beside the search; call reset() when one of them changes
//     empty     () -> nodes, shown when there are no rows at all; `nothing`: the text when a search finds no rows
//     select    true: rows can be ticked; onSelect(keys) is called with each change
//     name      a prefix in the query, for a second table on one page

import { left } from "./api.js";
import { fill, h, icon, uid } from "./dom.js";
import { exact } from "./format.js";
import { toast } from "./toasts.js";
import { failure, loading } from "./ui.js";

const TYPING_MS = 250;

export function table(page, options) {
  return new DataTable(page, options).handle();
}

class DataTable {
  constructor(page, options) {
    this.page = page;
    this.options = { limit: 50, filters: [], nothing: "No entries match. Change the search or the filters.", name: "", ...options };
    this.search = this.recall("search") ?? "";
    this.sort = this.recall("sort") ?? options.sort ?? null;
    this.offset = Number(this.recall("offset") ?? 0) || 0;
    this.ticked = new Set();
    this.shown = null;
    this.body = h("tbody");
    this.box = h("div", { class: "table-box" }, loading(6));
    this.pager = h("div", { class: "pager" });
    this.element = h("div", { class: "data-table" }, this.tools(), this.box, this.pager);
  }

  handle() {
    this.refresh();
    return {
      element: this.element,
      refresh: () => this.refresh(),
      reset: () => this.go(0),
      rows: () => this.shown?.rows ?? [],
      selected: () => [...this.ticked],
      clearSelection: () => this.tick([], []),
    };
  }

  recall(name) {
    return this.page.query.get(this.options.name + name);
  }

  tools() {
    const { search, filters } = this.options;
    if (!search && !filters.length) return null;
    return h("div", { class: "table-tools", role: "search" }, search && this.searchBox(search.label), filters);
  }

  searchBox(label) {
    const input = h("input", { type: "search", placeholder: label, "aria-label": label, value: this.search, id: uid("search"), autocomplete: "off" });
    let timer = 0;
    input.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(() => {
        this.search = input.value.trim();
        this.go(0);
      }, TYPING_MS);
    });
    return h("div", { class: "search" }, icon("search"), input);
  }

  go(offset) {
    this.offset = offset;
    const { name, sort } = this.options;
    this.page.setQuery({
      [`${name}search`]: this.search,
      [`${name}sort`]: this.sort === sort ? "" : this.sort,
      [`${name}offset`]: offset || "",
    });
    this.shown = null;
    return this.refresh();
  }

  async refresh() {
    this.loading?.abort();
    const loading = new AbortController();
    this.loading = loading;
    const signal = AbortSignal.any([loading.signal, this.page.signal]);
    const { limit } = this.options;
    try {
      const found = await this.options.load({ limit, offset: this.offset, search: this.search, sort: this.sort, signal });
      // Rows can be removed meanwhile, so that this page is behind the last one.
      if (found.rows.length === 0 && this.offset > 0) return this.go(Math.max(0, this.offset - limit));
      this.draw(found);
    } catch (error) {
      this.explain(error);
    }
    return undefined;
  }

  explain(error) {
    if (left(error)) return;
    // The old rows stay: they are more useful than an empty page. The toast reports the error.
    if (this.shown) toast(error.message, "bad");
    else fill(this.box, failure(error, () => this.refresh()));
  }

  draw(found) {
    const text = JSON.stringify([found, this.sort]);
    if (text === this.shown?.text) return;
    const fresh = !this.shown || this.shown.rows.length === 0 || this.sort !== this.shown.sort;
    this.shown = { ...found, text, sort: this.sort };
    if (found.rows.length === 0) fill(this.box, this.nothing());
    else this.drawRows(found.rows, fresh);
    this.drawPager(found);
  }

  nothing() {
    const filtered = this.search || this.options.filtered?.();
    if (!filtered && this.options.empty) return this.options.empty();
    return h("div", { class: "empty" }, h("p", null, this.options.nothing));
  }

  drawRows(rows, fresh) {
    const focused = focusedControl(this.body);
    fill(this.body, rows.map((row) => this.row(row)));
    if (fresh || !this.box.querySelector("table")) fill(this.box, this.frame());
    restoreFocus(this.body, focused);
    if (this.options.select) this.tick([...this.ticked], rows);
  }

  frame() {
    const { columns, label, select } = this.options;
    const head = columns.map((column) => this.headCell(column));
    if (select) {
      this.all = h("input", { type: "checkbox", "aria-label": "Select all rows on this page" });
      this.all.addEventListener("change", () => this.tickAll(this.all.checked));
      head.unshift(h("th", { class: "tick", scope: "col" }, this.all));
    }
    return h("table", { "aria-label": label }, h("thead", null, h("tr", null, head)), this.body);
  }

  headCell({ label, sort, numeric, wide }) {
    const current = sort !== undefined && sort === this.sort;
    const inner = sort === undefined ? label : h("button", { type: "button", class: "sort", on: { click: () => this.sortBy(sort) } }, label, h("span", { "aria-hidden": "true" }, current ? " ↓" : ""));
    return h("th", { scope: "col", class: [numeric && "numeric", wide && "wide"].filter(Boolean).join(" "), "aria-sort": current ? "descending" : null }, inner);
  }

  sortBy(sort) {
    this.sort = sort;
    return this.go(0);
  }

  row(row) {
    const key = this.options.rowKey(row);
    const cells = this.options.columns.map((column) =>
      h("td", { class: [column.numeric && "numeric", column.main && "main", column.wide && "wide"].filter(Boolean).join(" "), dataset: { label: column.label } }, column.cell(row)),
    );
    if (this.options.select) cells.unshift(h("td", { class: "tick" }, this.tickBox(key)));
    return h("tr", { dataset: { key } }, cells);
  }

  tickBox(key) {
    const box = h("input", { type: "checkbox", checked: this.ticked.has(key), "aria-label": `Select ${key}` });
    box.addEventListener("change", () => {
      if (box.checked) this.ticked.add(key);
      else this.ticked.delete(key);
      this.tick([...this.ticked], this.shown.rows);
    });
    return box;
  }

  tickAll(on) {
    this.tick(on ? this.shown.rows.map(this.options.rowKey) : [], this.shown.rows);
  }

  // Only rows of this page can be selected, so that no action affects invisible rows.
  tick(keys, rows) {
    const here = new Set(rows.map(this.options.rowKey));
    this.ticked = new Set(keys.filter((key) => here.has(key)));
    for (const line of this.body.rows) line.cells[0].firstChild.checked = this.ticked.has(line.dataset.key);
    if (this.all) {
      this.all.checked = this.ticked.size > 0 && this.ticked.size === rows.length;
      this.all.indeterminate = this.ticked.size > 0 && this.ticked.size < rows.length;
    }
    this.options.onSelect?.([...this.ticked]);
  }

  drawPager({ rows, total }) {
    const { limit } = this.options;
    const known = total !== null && total !== undefined;
    const more = known ? this.offset + rows.length < total : rows.length === limit;
    const from = this.offset + 1;
    const to = this.offset + rows.length;
    const range = rows.length ? `${exact(from)}–${exact(to)}${known ? ` of ${exact(total)}` : more ? " of many" : ""}` : "";
    const step = (text, drawing, offset, possible) => h("button", { type: "button", class: "small", "aria-label": text, title: text, disabled: !possible, on: { click: () => this.go(offset) } }, icon(drawing));
    const steps = (more || this.offset > 0) && [step("Previous page", "left", Math.max(0, this.offset - limit), this.offset > 0), step("Next page", "right", this.offset + limit, more)];
    fill(this.pager, h("span", { class: "range" }, range), steps);
  }
}

function focusedControl(body) {
  const line = document.activeElement?.closest("tr");
  if (!line || !body.contains(line)) return null;
  return [line.dataset.key, controls(line).indexOf(document.activeElement)];
}

function restoreFocus(body, focused) {
  if (focused === null) return;
  const line = [...body.rows].find((row) => row.dataset.key === focused[0]);
  controls(line ?? body)[Math.max(0, focused[1])]?.focus();
}

function controls(node) {
  return [...node.querySelectorAll("a, button, input, select")];
}
