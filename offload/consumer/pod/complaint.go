package pod

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// A reason why a pod cannot be reconciled is logged when it begins and when its text changes, not with every retry. A
// text that changes with every retry is logged at growing intervals.
const firstPause, longestPause = 10 * time.Second, 10 * time.Minute

// complaints are the last logged reasons, by pod.
type complaints struct {
	mu  sync.Mutex
	all map[types.NamespacedName]*complaint
}

type complaint struct {
	text  string
	at    time.Time
	pause time.Duration // in which no other text is logged
}

// isNews reports whether the text is to be logged now, and then records it as logged.
func (c *complaints) isNews(k types.NamespacedName, text string, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	last := c.all[k]
	if last == nil {
		if c.all == nil {
			c.all = map[types.NamespacedName]*complaint{}
		}
		c.all[k] = &complaint{text: text, at: now}
		return true
	}
	if since := now.Sub(last.at); last.text == text || since >= 0 && since < last.pause {
		return false
	}
	last.text, last.at, last.pause = text, now, min(max(2*last.pause, firstPause), longestPause)
	return true
}

// over removes a pod that was reconciled or is gone.
func (c *complaints) over(k types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.all, k)
}
