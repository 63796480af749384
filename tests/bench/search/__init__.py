"""How well the tool indexes find the tools of published queries, how fast, and what a request saves by them."""
