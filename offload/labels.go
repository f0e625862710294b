// Package offload runs pods of this cluster on others and pods of others on
// this one. See docs/offload.md.
package offload

