package config

// Secret is a text that is never shown: printed or encoded in any form it is Redacted. Reveal is for the one place that
// needs it.
type Secret string

// Redacted replaces a secret.
const Redacted = "(redacted)"

// Reveal returns the secret itself.
func (s Secret) Reveal() string { return string(s) }

// String returns Redacted, or nothing if there is no secret.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return Redacted
}

// GoString is String for %#v.
func (s Secret) GoString() string { return s.String() }

// MarshalText is for JSON and logs.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// MarshalYAML is for YAML.
func (s Secret) MarshalYAML() (any, error) { return s.String(), nil }
