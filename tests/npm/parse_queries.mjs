// Reads JSON lines {language, query} and prints the syntax errors of each query as a JSON line with a list of texts.

import { createInterface } from "node:readline";
import { parser as logql } from "@grafana/lezer-logql";
import { parser as traceql } from "@grafana/lezer-traceql";
import { parser as promql } from "@prometheus-io/lezer-promql";

const parsers = { logql, promql, traceql };

function errors(language, query) {
  const found = [];
  parsers[language].parse(query).iterate({
    enter(node) {
      if (node.type.isError) found.push(`at ${node.from}: ${query.slice(node.from, node.from + 30) || "the end"}`);
    },
  });
  return found;
}

for await (const line of createInterface({ input: process.stdin })) {
  const { language, query } = JSON.parse(line);
  console.log(JSON.stringify(errors(language, query)));
}
