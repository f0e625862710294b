// Package docs has the documentation's pages, for `rivulet docs`.
package docs

import "embed"

// Pages are all pages: README.md, and those of guide, reference and design, by their path below docs.
//
//go:embed *.md guide/*.md reference/*.md design/*.md
var Pages embed.FS
