package config

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

const card = `# my lab
name: bench-7
trust: {mode: group, secret: sixteen-and-more-letters}
share: {cpu: 50%}
wifi:
  country: "DE"
  networks:
    - {ssid: lab, password: a-long-word}
    - ssid: "café & co"
      password: 12345678
ssh:
  keys: ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl me@desk"]
burst:
  - {name: campus, kubeconfig: campus.kubeconfig}
`

func good(t *testing.T, text string) (Card, Parsed, string) {
	t.Helper()
	c, p := ParseCard([]byte(text), Options{File: CardName})
	return c, p, string(c.Good(p, "/etc/rivulet/group.secret", func(name string) string { return "/etc/rivulet/" + name }))
}

// What a card says becomes a configuration without secrets, which is itself right.
func TestCard(t *testing.T) {
	c, p, text := good(t, card)
	if len(p.Problems) > 0 {
		t.Fatal(p.Problems)
	}
	if len(c.WiFi) != 2 || c.WiFi[1].SSID != "café & co" || c.WiFi[1].Password != "12345678" || c.Country != "DE" || len(c.SSHKeys) != 1 {
		t.Errorf("%+v", c)
	}
	for _, want := range []string{"name: bench-7", "secretFile: /etc/rivulet/group.secret", "kubeconfig: /etc/rivulet/campus.kubeconfig", "cpu: 50%"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in\n%s", want, text)
		}
	}
	if again := Parse([]byte(text), Options{}); len(again.Problems) > 0 {
		t.Errorf("what was written is wrong: %v\n%s", again.Problems, text)
	}
	left := string(c.Emptied(p))
	for _, secret := range []string{"sixteen-and", "a-long-word", "12345678"} {
		if strings.Contains(text+left, secret) {
			t.Errorf("%q is still there:\n%s\n%s", secret, text, left)
		}
	}
	if !strings.Contains(left, "# my lab") || strings.Count(left, Moved) != 3 {
		t.Errorf("left on the card:\n%s", left)
	}
	c2, p2, text2 := good(t, left)
	if len(p2.Problems) > 0 || text2 != text || c2.WiFi[0].Password != Moved || c2.Emptied(p2) != nil {
		t.Errorf("read once more: %v\n%s", p2.Problems, text2)
	}
}

// A mistake takes its group along and nothing else; what could have said whom to trust
// closes the trust.
func TestWhatIsRightOnACard(t *testing.T) {
	for _, tt := range []struct {
		name, text, problem string
		has, not            []string
	}{
		{"a share", "name: a\nshare: {cpu: 50}\n", `rivulet.yaml:2:14: share.cpu: "50" lacks the %; write 50%`, []string{"name: a"}, []string{"share", "trust"}},
		{"a trust", "name: a\ntrust: {mode: lna}\n", "did you mean lan?", []string{"name: a", "mode: ask"}, nil},
		{"a key that may be trust", "trsut: {mode: group}\n", "did you mean trust?", []string{"mode: ask"}, nil},
		{"another key", "nmae: a\nshare: {cpu: 10%}\n", "did you mean name?", []string{"cpu: 10%"}, []string{"trust"}},
		{"no YAML", "name: [\n", "rivulet.yaml:", []string{"mode: ask"}, []string{"name"}},
		{"a list", "- a\n", "not keys with values", nil, []string{"name"}},
		{"a Wi-Fi", "wifi: {networks: [{ssid: a, password: short}, {ssid: b, password: long-enough}]}\n", "8 to 63 plain characters", nil, []string{"wifi", "trust"}},
		{"a private key", "ssh: {keys: [\"-----BEGIN OPENSSH PRIVATE KEY-----\"]}\nname: a\n", "never leaves its owner", []string{"name: a"}, []string{"ssh"}},
		{"a country", "wifi: {country: Germany}\n", "two capital letters", nil, nil},
		{"a registry's password", "registries: {configs: {r.example: {auth: {username: u, password: hidden-word}}}}\nname: a\n", "passwords of registries", []string{"name: a"}, []string{"hidden-word"}},
		{"a path", "burst: [{name: c, kubeconfig: ../x}]\nname: a\n", "not a whole path", []string{"name: a"}, []string{"burst"}},
	} {
		_, p, text := good(t, tt.text)
		if len(p.Problems) == 0 || !strings.Contains(p.Problems.Error(), tt.problem) {
			t.Errorf("%s: %v", tt.name, p.Problems)
		}
		for _, want := range tt.has {
			if !strings.Contains(text, want) {
				t.Errorf("%s: %q is missing in\n%s", tt.name, want, text)
			}
		}
		for _, never := range tt.not {
			if strings.Contains(text, never) {
				t.Errorf("%s: %q is in\n%s", tt.name, never, text)
			}
		}
	}
	if _, p, _ := good(t, "wifi: {networks: [{ssid: a, password: short}, {ssid: b, password: long-enough}]}\n"); len(p.Problems) != 1 {
		t.Error(p.Problems)
	}
}

// A password of a database is refused on a card, and everything else is used.
func TestACardHasNoDatabase(t *testing.T) {
	c, p := ParseCard([]byte("name: a\ndatastore: postgres://rivulet:CANARY@db/lab?sslmode=disable\n"), Options{})
	if len(p.Problems) != 1 || !strings.Contains(p.Problems[0].Cure, DefaultPath) || strings.Contains(fmt.Sprint(p.Problems), "CANARY") {
		t.Error(p.Problems)
	}
	if got := string(c.Good(p, "", nil)); got != "name: a\n" {
		t.Errorf("%q", got)
	}
}

// The keys of a card are not those of a configuration.
func TestACardIsNoConfiguration(t *testing.T) {
	if p := Parse([]byte("wifi: {}\n"), Options{}); len(p.Problems) == 0 {
		t.Error("a configuration takes wifi")
	}
	if p := Parse([]byte("trust: {mode: group, secret: "+Moved+"}\n"), Options{}); p.Config.Trust.Secret == "" {
		t.Error("in a configuration this is a secret like any other")
	}
}

// Whatever lines of it are missing, doubled or damaged: what is written is right, and
// never trusts more than the card said.
func TestADamagedCard(t *testing.T) {
	lines := strings.SplitAfter(strings.TrimSuffix(card, "\n"), "\n")
	rapid.Check(t, func(rt *rapid.T) {
		var text strings.Builder
		for _, l := range lines {
			switch rapid.IntRange(0, 9).Draw(rt, "line") {
			case 0:
			case 1:
				text.WriteString(l + l)
			case 2:
				at := rapid.IntRange(0, len(l)-1).Draw(rt, "at")
				text.WriteString(l[:at] + rapid.SampledFrom([]string{"x", ":", "{", "]", "\"", " ", "\t", "é", "#"}).Draw(rt, "put") + l[at:])
			default:
				text.WriteString(l)
			}
		}
		c, p, out := good(t, text.String())
		again := Parse([]byte(out), Options{})
		if len(again.Problems) > 0 {
			rt.Fatalf("of\n%s\nthis was written, which is wrong: %v\n%s", text.String(), again.Problems, out)
		}
		if mode := again.Config.Trust.Mode; mode != TrustGroup && mode != TrustAsk && strings.Contains(text.String(), "trust:") && strings.Contains(text.String(), "mode: group") && !strings.Contains(text.String(), "#") {
			rt.Fatalf("of\n%s\nthe trust became %q", text.String(), mode)
		}
		if left := c.Emptied(p); left != nil {
			if _, p2 := ParseCard(left, Options{File: CardName}); len(p2.Problems) != len(p.Problems) {
				rt.Fatalf("the card has other problems than before: %v, were %v\n%s", p2.Problems, p.Problems, left)
			}
		}
	})
}

// Keys are added to whatever can be the file of a card, which keeps the rest and its comments.
func TestAddToCard(t *testing.T) {
	hash := "sha256:" + strings.Repeat("0a", 32)
	for what, file := range map[string]string{
		"nothing": "", "comments": "# mine\n# too", "a file": "# mine\nssh: # too\n  keys: []\n", "no line end": "# mine\nwifi:\n  country: DE # too", "windows": "# mine\r\nwifi:\r\n  country: DE # too\r\n",
		"brackets": "{wifi: {country: DE}}", "no value": "# mine\nname: # too\nwifi:\n  country: DE\n", "a mark": "---\nwifi: {country: DE}\n...\n", "indented": "  wifi: {country: DE}\n  ingress: true\n",
		"an end": "wifi: {country: DE}\n\n\n",
	} {
		got := AddToCard([]byte(file), [2]string{"name", "brisk-otter"}, [2]string{"consoleCode", hash})
		card, parsed := ParseCard(got, Options{File: CardName})
		if len(parsed.Problems) > 0 || parsed.Config.Name != "brisk-otter" || parsed.Config.ConsoleCode != hash {
			t.Errorf("%s: %v in\n%s", what, parsed.Problems, got)
		}
		if strings.Contains(file, "country") && card.Country != "DE" || strings.Contains(file, "ingress") && !parsed.Config.Ingress {
			t.Errorf("%s has lost what was in it:\n%s", what, got)
		}
		for _, comment := range []string{"# mine", "# too"} {
			if strings.Contains(file, comment) && !strings.Contains(string(got), comment) {
				t.Errorf("%s: no %s in\n%s", what, comment, got)
			}
		}
	}
}
