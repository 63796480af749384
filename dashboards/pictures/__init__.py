"""Pictures of the boards for the documentation: SVG drawn from the answers of a Prometheus."""
