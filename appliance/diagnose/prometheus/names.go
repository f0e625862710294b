package prometheus

import (
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"
)

const (
	// maxLabel bounds a label's value, bytes.
	maxLabel = 64
	// holdName is how long a text of another cluster stays as it was first seen: a cluster that changes its name with each
	// scrape makes 24 series a day.
	holdName = time.Hour
	// forgetName is how long the text of a cluster is remembered after it was last exported.
	forgetName = 24 * time.Hour
)

// clean bounds a label's value and removes what is not printable.
func clean(s string) string {
	s = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '_'
		}
		return r
	}, s)
	if len(s) > maxLabel {
		s = strings.ToValidUTF8(s[:maxLabel], "")
	}
	return s
}

// names holds texts of other clusters. Its zero value is ready for use.
type names struct {
	mu   sync.Mutex
	held map[string]held
}

type held struct {
	text       string
	since, use time.Time
}

// hold returns the text of a cluster: the present one, or the one before if that changed less than holdName ago.
func (n *names) hold(key, text string, now time.Time) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.held == nil {
		n.held = map[string]held{}
	}
	h, known := n.held[key]
	if age := now.Sub(h.since); !known || text != h.text && (age >= holdName || age < 0) {
		h = held{text: text, since: now}
	}
	h.use = now
	n.held[key] = h
	return h.text
}

// sweep forgets clusters that are gone.
func (n *names) sweep(now time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for key, h := range n.held {
		if age := now.Sub(h.use); age >= forgetName || age < -forgetName {
			delete(n.held, key)
		}
	}
}
