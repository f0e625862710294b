//go:build !race

// Package race tells tests whether Go's race detector is on. It takes several times
// the memory and the time: bounds of these are checked without it.
package race

// Enabled reports whether the detector is on.
const Enabled = false
