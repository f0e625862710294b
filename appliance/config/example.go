package config

import _ "embed"

// Example is a file with every key and its meaning, all commented out, so it changes nothing. A setting begins with #,
// a remark with # and a space.
//
//go:embed example.yaml
var Example string
