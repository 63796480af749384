// Reads LogQL queries, each as a JSON line with a text, and prints the syntax tree of each as a JSON line: [name, text, children].

import { createInterface } from "node:readline";
import { parser } from "@grafana/lezer-logql";

function tree(node, query) {
  const children = [];
  for (let child = node.firstChild; child; child = child.nextSibling) children.push(tree(child, query));
  return [node.name, query.slice(node.from, node.to), children];
}

for await (const line of createInterface({ input: process.stdin })) {
  const query = JSON.parse(line);
  console.log(JSON.stringify(tree(parser.parse(query).topNode, query)));
}
