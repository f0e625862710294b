package config

import (
	"slices"
	"testing"
)

func TestWithheld(t *testing.T) {
	for text, want := range map[string][]string{
		"": nil,
		"mirrors: {docker.io: {endpoint: [\"https://mirror.example\"]}}":                                              nil,
		"configs: {a.example: {tls: {ca_file: /ca, insecure_skip_verify: true}}}":                                     nil,
		"configs: {a.example: {auth: {username: x, password: y}}}":                                                    {"a.example"},
		"configs: {\"A.example:5000\": {auth: {identity_token: x}}, b.example: {tls: {cert_file: /c, key_file: /k}}}": {"a.example", "b.example"},
		"configs: {registry-1.docker.io: {auth: {auth: x}}}":                                                          {"docker.io"},
		"mirrors: {docker.io: {endpoint: [\"https://plain.example\", \"https://m.example:5000/v2\"]}, quay.io: {endpoint: [\"https://q.example\"]}}\nconfigs: {m.example: {auth: {username: x}}}": {"docker.io", "m.example"},
		"mirrors: {\"*\": {endpoint: [\"https://m.example\"]}}\nconfigs: {m.example: {auth: {username: x}}}":                                                                                      {"*", "m.example"},
		"mirrors: {docker.io: {endpoint: [\"https://u:p@m.example\"]}}":                                                                                                                           {"docker.io"},
		"mirrors: {docker.io: {endpoint: [\"https://m.example\"]}}\nconfigs: {\"*\": {auth: {username: x}}}":                                                                                      {"*", "docker.io"},
		"configs: [": {"*"},
	} {
		if got := Withheld(text); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
	// What this package writes it reads.
	r := Registries{Configs: map[string]Registry{"a.example": {Auth: &Auth{Username: "x", Password: "y"}}}}
	if got := Withheld(r.K3s()); !slices.Equal(got, []string{"a.example"}) || !slices.Equal(r.Withheld(), got) {
		t.Errorf("%q", got)
	}
	c := Parse([]byte("registries: {configs: {a.example: {auth: {username: x, password: y}, share: true}, b.example: {auth: {username: x, password: y}}}}"), Options{}).Config
	if got := c.Registries.Withheld(); !slices.Equal(got, []string{"b.example"}) {
		t.Errorf("shared all the same: %q", got)
	}
}
