package mute

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Whatever is doubted, trusted and forgotten, and however often watches are made
// afresh: they are called mute exactly when one thing has been missing for as long as
// the patience lasts, and patience never leaves its bounds.
func TestGuard(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(0, 0)
		fresh := func(patience time.Duration) *Guard[string] {
			g := New[string](patience)
			g.now = func() time.Time { return now }
			return g
		}
		g, missing, patience := fresh(Proof), map[string]time.Time{}, Proof
		key := rapid.SampledFrom([]string{"a", "b", "c"})
		t.Repeat(map[string]func(*rapid.T){
			"time passes": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(0, 40).Draw(t, "seconds")) * time.Second)
			},
			"doubt": func(t *rapid.T) {
				k := key.Draw(t, "key")
				if _, ok := missing[k]; !ok {
					missing[k] = now
				}
				left := g.Doubt(k)
				if mute := now.Sub(missing[k]) >= patience; mute != (left == 0) || left < 0 || left > patience {
					t.Fatalf("%s missing for %s of %s: %s left", k, now.Sub(missing[k]), patience, left)
				}
				if left == 0 {
					patience = min(2*patience, Slowest)
					g, missing = fresh(g.Next()), map[string]time.Time{}
				}
			},
			"trust": func(t *rapid.T) {
				k := key.Draw(t, "key")
				if _, ok := missing[k]; ok {
					patience = Proof
				}
				delete(missing, k)
				g.Trust(k)
			},
			"forget": func(t *rapid.T) {
				k := key.Draw(t, "key")
				delete(missing, k)
				g.Forget(k)
			},
			"": func(t *rapid.T) {
				if p := g.Patience(); p != patience || p < Proof || p > Slowest {
					t.Fatalf("patience is %s, want %s", p, patience)
				}
			},
		})
	})
}
