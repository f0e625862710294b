package config

// Secret is a word that no screen and no log may show: however it is printed or
// encoded, it comes out as Redacted. Reveal is for the one place that needs it.
type Secret string

// Redacted stands for a secret.
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

// MarshalText is what JSON and logs get.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// MarshalYAML is what YAML gets.
func (s Secret) MarshalYAML() (any, error) { return s.String(), nil }
