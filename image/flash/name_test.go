package flash

import (
	"regexp"
	"slices"
	"testing"
)

func TestNames(t *testing.T) {
	word := regexp.MustCompile(`^[a-z]{3,7}$`)
	for _, list := range [][]string{manners, animals} {
		if n := len(list); n != 64 || !slices.IsSorted(list) || len(slices.Compact(slices.Clone(list))) != n {
			t.Errorf("%d words, or not in order, or twice: %v", n, list)
		}
		for _, w := range list {
			if !word.MatchString(w) {
				t.Errorf("%s is no short plain word", w)
			}
		}
	}
	for digits, form := range map[bool]string{false: `^[a-z]+-[a-z]+$`, true: `^[a-z]+-[a-z]+-[1-9][0-9]$`} {
		seen := map[string]bool{}
		for range 100 {
			name := NewName(digits)
			if !regexp.MustCompile(form).MatchString(name) || len(name) > 40 {
				t.Errorf("%v: %s", digits, name)
			}
			seen[name] = true
		}
		if len(seen) < 80 {
			t.Errorf("%v: only %d different names of 100", digits, len(seen))
		}
	}
}
