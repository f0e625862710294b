package signin

import (
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
)

func TestCodes(t *testing.T) {
	form := regexp.MustCompile(`^([0-9A-HJKMNP-TV-Z]{4}-){3}[0-9A-HJKMNP-TV-Z]{4}$`)
	seen := map[string]bool{}
	for range 2000 {
		c := New()
		text := c.String()
		if !form.MatchString(text) || seen[text] {
			t.Fatalf("%q, or it came twice", text)
		}
		seen[text] = true
		as := []byte(text)
		for i := range as { // as people write it
			switch {
			case as[i] == '0' && rand.IntN(2) == 0:
				as[i] = 'O'
			case as[i] == '1':
				as[i] = "1IlL"[rand.IntN(4)]
			case rand.IntN(2) == 0:
				as[i] = strings.ToLower(string(as[i]))[0]
			}
		}
		typed := " " + strings.ReplaceAll(string(as), "-", []string{"", " ", "-", "--"}[rand.IntN(4)]) + "\n"
		if back, err := Parse(typed); err != nil || back != c {
			t.Fatalf("%q is read from %q: %v, %v", text, typed, back, err)
		}
		if err := CheckHash(c.Hash()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestNoCodes(t *testing.T) {
	for _, text := range []string{"", "0000-0000-0000-000", "0000-0000-0000-00000", "0000-0000-0000-000U", "0000 0000 0000 000ä", strings.Repeat("0", 300)} {
		if c, err := Parse(text); err == nil {
			t.Errorf("%q is %v", text, c)
		}
	}
	for _, text := range []string{"", "sha256:", New().String(), "sha256:zz", strings.ToUpper(New().Hash()), strings.TrimPrefix(New().Hash(), HashPrefix)} {
		if CheckHash(text) == nil {
			t.Errorf("%q is a hash", text)
		}
	}
}
