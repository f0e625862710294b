// Package dns01 stands for the one of the ACME library: certificates are in Secrets here.
package dns01

import "strings"

// UnFqdn returns the name without the dot at its end.
func UnFqdn(name string) string { return strings.TrimSuffix(name, ".") }
