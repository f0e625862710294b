//go:build race

package race

// Enabled reports whether the detector is on.
const Enabled = true
