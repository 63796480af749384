"""The loop: the chain of advisors, the exchange of requests and answers, and the tool-calling loop."""
